-- Checks a right, in functions that run with their owner's rights: there current_user is the owner.
create or replace function oncely.has_right(verb text, object text, tenant text) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Code that runs inside a worker is the operator's own, and a worker writes keys, effects and events of every
    -- tenant anyway. Null if the role does not exist.
    if coalesce(pg_has_role(session_user, to_regrole('oncely_worker'), 'member'), false)
        or pg_has_role(session_user, current_user, 'member')
    then
        return true;
    end if;
    return exists (
        select from oncely.rights as r
        where r.tenant in (has_right.tenant, '*') and r.verb = has_right.verb and r.object = has_right.object
          and (r.login = session_user or pg_has_role(session_user, to_regrole(quote_ident(r.login)), 'member'))
    );
end
$$;
comment on function oncely.has_right is 'Has the session''s user a right?';
revoke execute on function oncely.has_right from public;
