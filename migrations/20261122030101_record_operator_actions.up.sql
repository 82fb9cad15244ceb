set local search_path = pg_catalog, pg_temp;

-- Who did what is for the database to say: an operator could insert rows of his own, under another's name and at another time.
create function oncely.record_action(tenant text, verb text, filter jsonb, count bigint, reason text, os_user text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz := clock_timestamp();
begin
    if octet_length(record_action.tenant) > 255 or octet_length(record_action.verb) > 64 or octet_length(record_action.os_user) > 255
        or octet_length(record_action.reason) > 10000 or octet_length(record_action.filter::text) > 10000000
    then
        raise exception using errcode = 'ONC11', message = 'oncely: a text of this action is too long',
            hint = 'Tenant and user have up to 255 bytes, a note up to 10000.';
    end if;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        record_action.tenant, oncely.uuid_v7(at), at, concat(session_user, ' (', record_action.os_user, ')'), record_action.verb,
        record_action.filter, record_action.count, record_action.reason
    );
end
$$;
comment on function oncely.record_action(text, text, jsonb, bigint, text, text) is 'Records what a person did, in the transaction in which it is done: under the session''s user, at the database''s time.';
comment on column oncely.operator_actions.actor is 'Who: the database''s session user, and in brackets what the client said of the user of the operating system.';
comment on column oncely.operator_actions.verb is 'What: requeue, discard, retry, set retention, accept clock, …';
revoke execute on function oncely.record_action(text, text, jsonb, bigint, text, text) from public;

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_operator') then
        revoke insert on oncely.operator_actions from oncely_operator;
        grant execute on function oncely.record_action(text, text, jsonb, bigint, text, text) to oncely_operator;
    end if;
end
$$;
