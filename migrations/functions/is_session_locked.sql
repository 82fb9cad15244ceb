create or replace function oncely.is_session_locked(name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from oncely.locks as l
        where l.name = is_session_locked.name and l.pid <> 0 and oncely.is_at_work(l.pid, l.backend_start)
    );
end
$$;
comment on function oncely.is_session_locked is 'Does a session hold this lock?';
revoke execute on function oncely.is_session_locked from public;
