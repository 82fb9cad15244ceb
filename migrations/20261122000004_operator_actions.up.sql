set local search_path = pg_catalog, pg_temp;

-- Holds operators' actions. The database decides about the actor: only record_action and the functions that act
-- themselves insert rows, with the session's user and the database's time.
create table oncely.operator_actions (
    tenant text collate "C" not null,
    id uuid not null,
    occurred_at timestamptz not null,
    actor text not null,
    verb text collate "C" not null,
    filter jsonb not null,
    count bigint not null,
    reason text,
    constraint operator_actions_pkey primary key (tenant, id),
    constraint operator_actions_times check (
        least(occurred_at) >= '1970-01-01 00:00:00+00' and greatest(occurred_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.operator_actions is 'Append-only: what people did, in the transaction in which they did it.';
comment on column oncely.operator_actions.tenant is 'Whose messages; empty where the action spans tenants.';
comment on column oncely.operator_actions.id is 'Random (version 7); says nothing about order.';
comment on column oncely.operator_actions.occurred_at is 'When, by the database''s clock.';
comment on column oncely.operator_actions.actor is
    'Who: the database''s session user, and in brackets what the client said of the user of the operating system.';
comment on column oncely.operator_actions.verb is 'What: requeue, discard, retry, set retention, accept clock, …';
comment on column oncely.operator_actions.filter is 'Which rows were asked for.';
comment on column oncely.operator_actions.count is 'How many rows it was done to.';
comment on column oncely.operator_actions.reason is 'Why, in the person''s words.';
create index operator_actions_occurred_at on oncely.operator_actions (occurred_at);
comment on index oncely.operator_actions_occurred_at is 'For lists of what was done lately.';

-- from functions/record_action.sql
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

-- end of functions
