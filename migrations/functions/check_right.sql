create or replace function oncely.check_right(verb text, object text, tenant text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if oncely.has_right(check_right.verb, check_right.object, check_right.tenant) then
        return;
    end if;
    raise exception using errcode = 'ONC16',
        message = case check_right.verb
            when 'emit' then format(
                'oncely: %I may not emit to the exchange %L for the tenant %L',
                session_user, check_right.object, check_right.tenant
            )
            else format(
                'oncely: %I may not consume as %L for the tenant %L',
                session_user, check_right.object, check_right.tenant
            )
        end,
        hint = format(
            'An operator may grant it: oncely grant %s %s --tenant %s', session_user,
            case check_right.verb
                when 'emit' then format('--emit --exchange %L', check_right.object)
                else format('--consumer %L', check_right.object)
            end,
            quote_literal(check_right.tenant)
        );
end
$$;
comment on function oncely.check_right is 'Refuses (SQLSTATE ONC16) a session''s user who has no right to it.';
revoke execute on function oncely.check_right from public;
