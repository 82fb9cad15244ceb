create or replace function oncely.leave(id uuid) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    session_login constant text := session_user;
begin
    delete from oncely.processes as p where p.id = leave.id and p.login = session_login;
end
$$;
comment on function oncely.leave is 'Removes the row of a process that ends in peace.';
revoke execute on function oncely.leave from public;
