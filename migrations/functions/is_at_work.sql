-- pg_stat_activity is read once a transaction: a session that has waited for a lock since would miss another one that
-- was opened meanwhile, and take its run for a dead one. Of another login's session it shows the process alone: one
-- that may be the marking session is taken for it, because a death too few costs a killer one more run, and a death
-- too many might cost an innocent message its place.
create or replace function oncely.is_at_work(pid integer, backend_start timestamptz) returns boolean
language plpgsql volatile
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
