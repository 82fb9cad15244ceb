create or replace function oncely.grant_right(login text, verb text, object text, tenant text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    written boolean;
begin
    if grant_right.verb is null or grant_right.verb not in ('consume', 'requeue', 'emit', 'read') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a right is to consume, to requeue, to emit or to read';
    end if;
    if grant_right.verb = 'read' and (grant_right.tenant = '*' or grant_right.object <> '') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a right to read is of one tenant, and of no consumer or exchange',
            hint = 'Who may read the rows of all tenants is a member of oncely_auditor.';
    end if;
    if grant_right.object is null or octet_length(grant_right.object) > 255
        or grant_right.tenant is null or octet_length(grant_right.tenant) not between 1 and 255
        or (grant_right.verb in ('consume', 'requeue') and grant_right.object = '')
    then
        raise exception using errcode = 'ONC11', message = 'oncely: no such consumer, queue, exchange or tenant',
            hint = 'A tenant is a name or * for any; names have up to 255 bytes.';
    end if;
    if to_regrole(quote_ident(grant_right.login)) is null then
        raise exception using errcode = 'undefined_object',
            message = format('oncely: there is no login %L', grant_right.login);
    end if;
    insert into oncely.rights (tenant, verb, object, login, granted_at, granted_by)
    values (grant_right.tenant, grant_right.verb, grant_right.object, grant_right.login, at, session_login)
    on conflict do nothing;
    written := found;
    if written then
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count)
        values (
            case when grant_right.tenant = '*' then '' else grant_right.tenant end, oncely.uuid_v7(at), at,
            session_login, 'grant',
            jsonb_build_object(
                'login', grant_right.login, 'verb', grant_right.verb, 'object', grant_right.object,
                'tenant', grant_right.tenant
            ), 1
        );
    end if;
    return written;
end
$$;
comment on function oncely.grant_right is
    'Lets a login consume as a consumer, have dead letters requeued to a queue, or emit to an exchange, for a tenant '
    '(* for any), or read the rows of a tenant. False where it might already. For operators.';
revoke execute on function oncely.grant_right from public;
