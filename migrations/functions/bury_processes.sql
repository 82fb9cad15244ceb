create or replace function oncely.bury_processes(before_time timestamptz) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Keeps a row seen within the last minute, whatever time the caller passes.
    before timestamptz := least(bury_processes.before_time, clock_timestamp() - interval '1 minute');
    silent uuid[];
    gone bigint;
begin
    silent := array(
        select o.id
        from oncely.processes as o
        where o.last_seen_at < before
        -- A row locked by its own user stays until the next call.
        for update skip locked
    );
    delete from oncely.processes as p where p.id = any (silent);
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.bury_processes is
    'Removes the rows of processes that were last seen before a time; returns how many.';
revoke execute on function oncely.bury_processes from public;
