create or replace function oncely.release_session_lock(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    own integer := pg_backend_pid();
    at timestamptz := clock_timestamp();
begin
    delete from oncely.locks as l where l.name = release_session_lock.name and l.pid = own;
    update oncely.locks as l set since = at where l.name = release_session_lock.name and l.pid = 0;
end
$$;
comment on function oncely.release_session_lock is 'Releases a lock of the session.';
revoke execute on function oncely.release_session_lock from public;
