create or replace function oncely.take_lock(name text, shared boolean) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if shared then
        perform from oncely.locks as l where l.name = take_lock.name and l.pid = 0 for share;
    else
        perform from oncely.locks as l where l.name = take_lock.name and l.pid = 0 for update;
    end if;
    if not found then
        raise exception using errcode = 'ONC11', message = format('oncely: there is no lock %s', name);
    end if;
end
$$;
comment on function oncely.take_lock is 'Takes a lock until the transaction ends; waits for it.';
revoke execute on function oncely.take_lock from public;
