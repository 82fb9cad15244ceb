-- Clears the snapshot of pg_stat_activity, which is read once a transaction: after a lock wait, a session opened
-- meanwhile would be missing, and its run would look dead. For another login's session only the process is shown: a
-- session that may be the marking one counts as it, because a missed death costs a killer one more run, and a false
-- death might cost an innocent message its place. Stable, though it is asked anew for each row: PostgreSQL keeps no
-- result of a stable function, and an engine that spreads tables over nodes passes no condition on that is volatile.
create or replace function oncely.is_at_work(pid integer, backend_start timestamptz) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_stat_clear_snapshot();
    return exists (
        select from pg_stat_activity as a
        where a.pid = is_at_work.pid
            and coalesce(a.backend_start, is_at_work.backend_start) = is_at_work.backend_start
    );
end
$$;
comment on function oncely.is_at_work is 'Is the session there that marked a key? Asked anew with each call.';
revoke execute on function oncely.is_at_work from public;
