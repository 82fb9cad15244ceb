create or replace function oncely.try_session_lock(name text, shared boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    own integer := pg_backend_pid();
    at timestamptz := clock_timestamp();
    holder record;
    is_held boolean := false;
begin
    perform oncely.take_lock(name, false);
    -- A closed session holds nothing; nor does one with a pid that another session has got since.
    for holder in
        select l.pid, l.backend_start, l.since
        from oncely.locks as l
        where l.name = try_session_lock.name and l.pid <> 0
    loop
        if holder.pid = own or holder.since < at - interval '1 day'
            or not oncely.is_at_work(holder.pid, holder.backend_start)
        then
            delete from oncely.locks as l where l.name = try_session_lock.name and l.pid = holder.pid;
        else
            is_held := true;
        end if;
    end loop;
    if is_held and not shared then
        return false;
    end if;
    insert into oncely.locks (name, pid, backend_start, since)
    select try_session_lock.name, a.pid, coalesce(a.backend_start, '1970-01-01 00:00:00+00'), at
    from pg_stat_get_activity(own) as a;
    return true;
end
$$;
comment on function oncely.try_session_lock is
    'Takes a lock until it is released or the session ends, a day at the most; false where another session holds it. A '
    'shared one never keeps others out, and is seen (oncely.is_session_locked).';
revoke execute on function oncely.try_session_lock from public;
