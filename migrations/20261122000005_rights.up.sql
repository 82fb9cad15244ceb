set local search_path = pg_catalog, pg_temp;

-- Holds rights to consume, to emit, and to read rows. The roles oncely_consumer and oncely_emitter open the functions,
-- oncely_tenant_auditor the rows; with them a login has only the rights listed here. Rights belong to the session's
-- user, which neither SET ROLE nor a function of the application changes.
create table oncely.rights (
    tenant text collate "C" not null,
    verb text collate "C" not null,
    object text collate "C" not null,
    login text collate "C" not null,
    granted_at timestamptz not null,
    granted_by text collate "C" not null,
    constraint rights_pkey primary key (tenant, verb, object, login),
    constraint rights_verb check (verb in ('consume', 'requeue', 'emit', 'read')),
    -- The default exchange has no name. A login that may read all tenants has the role oncely_auditor instead.
    constraint rights_object check (
        octet_length(tenant) between 1 and 255 and octet_length(object) <= 255
        and case
            when verb in ('consume', 'requeue') then object <> ''
            when verb = 'read' then object = '' and tenant <> '*'
            else true
        end
    ),
    constraint rights_login check (octet_length(login) between 1 and 63),
    constraint rights_times check (
        granted_at >= '1970-01-01 00:00:00+00' and granted_at <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.rights is
    'What logins may do by oncely.claim, complete, fail (consume) and oncely.emit, to which queues their dead letters '
    'are requeued (requeue), and whose rows members of oncely_tenant_auditor are shown (read). Without a row: nothing. '
    'Workers and the schema''s owner need none.';
comment on column oncely.rights.tenant is 'For messages of which tenant; * is any, but for read.';
comment on column oncely.rights.verb is
    'consume: claim, complete and fail. requeue: store the messages of a queue as dead letters, which operators have '
    'published to that queue again. emit: write events. read: see the rows of the tenant.';
comment on column oncely.rights.object is
    'consume: the consumer. requeue: the queue. emit: the exchange; empty for the default exchange, through which '
    'every queue can be reached. read: empty.';
comment on column oncely.rights.login is
    'The login, or a role that logins are members of. By its name: revoke before the role is dropped.';
comment on column oncely.rights.granted_at is 'When, by the database''s clock.';
comment on column oncely.rights.granted_by is 'The session''s user who granted it.';

-- from functions/has_right.sql
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

-- from functions/check_right.sql
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

-- from functions/visible_tenants.sql
-- Returns the tenants that the session's user may see. A login that must not see rows must not plan over them:
-- estimates come from samples of all rows, so EXPLAIN tells a login with a right to a table its values and their
-- frequency, whatever the policies hide. So members of oncely_tenant_auditor have no right to a table with tenants'
-- rows. They read by functions (oncely.list_audit and its like), as do operators and auditors: EXPLAIN sees a function
-- with a fixed estimate. A session could still have the plans inside printed, so each function pins debug_print_plan.
create or replace function oncely.visible_tenants() returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set debug_print_plan = off
as $$
    select case
        -- The schema's owner, and superusers, are members of every role.
        when pg_has_role(session_user, current_user, 'member') then null
        -- The narrower role wins over all other memberships.
        when pg_has_role(session_user, to_regrole('oncely_tenant_auditor'), 'member')
            then array(
                select r.tenant
                from oncely.rights as r
                where r.verb = 'read'
                    and (
                        r.login = session_user
                        or pg_has_role(session_user, to_regrole(quote_ident(r.login)), 'member')
                    )
            )
    end
$$;
comment on function oncely.visible_tenants is
    'Tenants whose rows the session''s user is shown by the functions that list rows: null, all; for a member of '
    'oncely_tenant_auditor those that it may read by oncely.rights.';
revoke execute on function oncely.visible_tenants from public;

-- from functions/grant_right.sql
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

-- from functions/revoke_rights.sql
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

-- end of functions
