create or replace function oncely.record_action(
    tenant text, verb text, filter jsonb, count bigint, reason text, os_user text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
begin
    if octet_length(record_action.tenant) > 255 or octet_length(record_action.verb) > 64
        or octet_length(record_action.os_user) > 255 or octet_length(record_action.reason) > 10000
        or octet_length(record_action.filter::text) > 10000000
    then
        raise exception using errcode = 'ONC11', message = 'oncely: a text of this action is too long',
            hint = 'Tenant and user have up to 255 bytes, a note up to 10000.';
    end if;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        record_action.tenant, oncely.uuid_v7(at), at, concat(session_login, ' (', record_action.os_user, ')'),
        record_action.verb, record_action.filter, record_action.count, record_action.reason
    );
end
$$;
comment on function oncely.record_action is
    'Records what a person did, in the transaction in which it is done: under the session''s user, at the '
    'database''s time.';
revoke execute on function oncely.record_action from public;
