create or replace function oncely.revoke_rights(
    login text, verb text default null, object text default null, tenant text default null
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    gone bigint;
begin
    delete from oncely.rights as r
    where r.login = revoke_rights.login
      and (revoke_rights.verb is null or r.verb = revoke_rights.verb)
      and (revoke_rights.object is null or r.object = revoke_rights.object)
      and (revoke_rights.tenant is null or r.tenant = revoke_rights.tenant);
    get diagnostics gone = row_count;
    if gone > 0 then
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count)
        values (
            case when revoke_rights.tenant = '*' then '' else coalesce(revoke_rights.tenant, '') end,
            oncely.uuid_v7(at), at, session_login, 'revoke',
            jsonb_strip_nulls(jsonb_build_object(
                'login', revoke_rights.login, 'verb', revoke_rights.verb, 'object', revoke_rights.object,
                'tenant', revoke_rights.tenant
            )), gone
        );
    end if;
    return gone;
end
$$;
comment on function oncely.revoke_rights is
    'Takes a login''s rights back: those that match, where null matches any. Returns how many. For operators.';
revoke execute on function oncely.revoke_rights from public;
