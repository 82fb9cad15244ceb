-- A searchable copy of each dead letter: looking into a dead-letter queue can empty it (each look counts against a quorum
-- queue's delivery limit), so lists come from here. The queue stays the truth of "nothing is lost".
drop view oncely.dead_letters;

create table oncely.dead_letters (
    tenant text collate "C" not null,
    id uuid not null,
    consumer text collate "C" not null,
    key text collate "C" not null,
    dead_lettered_at timestamptz not null,
    reason text collate "C" not null,
    error_code text collate "C",
    detail text,
    attempt integer not null,
    queue text collate "C" not null,
    worker text collate "C" not null,
    trace_id text collate "C",
    state text collate "C" not null,
    generation integer not null,
    times integer not null,
    failure_group text collate "C" not null,
    exchange text collate "C" not null,
    routing_key text collate "C" not null,
    fingerprint bytea,
    properties jsonb,
    headers jsonb,
    body bytea,
    body_size bigint not null,
    whole boolean generated always as (body is not null) stored,
    updated_at timestamptz not null,
    swept_at timestamptz,
    constraint dead_letters_pkey primary key (tenant, id),
    constraint dead_letters_state check (state in ('waiting', 'requeueing', 'requeued', 'discarded')),
    -- Only a message that is stored whole is published again from here.
    constraint dead_letters_whole check (body is null or properties is not null)
);
comment on table oncely.dead_letters is 'A searchable copy of each dead letter. Requeued and discarded ones are collected after audit.retention, waiting ones never.';
comment on column oncely.dead_letters.tenant is 'Whose message; empty where the message had no valid one.';
comment on column oncely.dead_letters.id is 'Derived from identity and body (version 8), so that a message that is dead-lettered again keeps its row; random (version 7) where the identity is not known.';
comment on column oncely.dead_letters.consumer is 'For which consumer.';
comment on column oncely.dead_letters.key is 'Which message; empty where it had no valid key.';
comment on column oncely.dead_letters.dead_lettered_at is 'When it was dead-lettered, the last time.';
comment on column oncely.dead_letters.reason is 'Stable reason code, as in the header x-oncely-reason.';
comment on column oncely.dead_letters.error_code is 'SQLSTATE of the error, where it was one of PostgreSQL.';
comment on column oncely.dead_letters.detail is 'For people.';
comment on column oncely.dead_letters.attempt is 'Which run of the handler; 0 where it did not run.';
comment on column oncely.dead_letters.queue is 'The queue it came from; it waits in <queue>.dead.';
comment on column oncely.dead_letters.worker is 'Name of the worker process.';
comment on column oncely.dead_letters.trace_id is 'Trace id of the W3C traceparent header that the message carried.';
comment on column oncely.dead_letters.state is 'waiting; requeueing: decided, not yet known to be published; requeued; discarded.';
comment on column oncely.dead_letters.generation is 'From 1; grows when a message that was requeued or discarded is dead-lettered again. With the id in the header x-oncely-dead-letter of the queue''s copy, so that an older copy is told from the current one.';
comment on column oncely.dead_letters.times is 'How often this very message was dead-lettered, redeliveries included.';
comment on column oncely.dead_letters.failure_group is 'What failed alike: reason, SQLSTATE and a hash of the detail without its numbers and quoted values.';
comment on column oncely.dead_letters.exchange is 'The exchange it came through, the last time; empty for the default exchange.';
comment on column oncely.dead_letters.routing_key is 'Its routing key; a requeued copy keeps it.';
comment on column oncely.dead_letters.fingerprint is 'What the consumer compares when a key comes back; null where it compares nothing.';
comment on column oncely.dead_letters.properties is 'AMQP properties without the headers; a text that is none is {"x": hexadecimal}. Null where the message is not stored whole.';
comment on column oncely.dead_letters.headers is 'AMQP headers. Text, integers of 64 bits, booleans and null are themselves; {"type": value} is everything else, by AMQP''s type letters.';
comment on column oncely.dead_letters.body is 'The body; null where it is over dead_letters.max_body, or the headers nest too deep to be stored: then only the queue has the message.';
comment on column oncely.dead_letters.whole is 'The row holds the message, so that it is published again from here; else from the queue.';
comment on column oncely.dead_letters.body_size is 'Bytes of the body.';
comment on column oncely.dead_letters.updated_at is 'When the state last changed.';
comment on column oncely.dead_letters.swept_at is 'When the queue was gone through after the letter was requeued or discarded; its copy there is gone.';

create index dead_letters_open on oncely.dead_letters (dead_lettered_at) where state in ('waiting', 'requeueing');
comment on index oncely.dead_letters_open is 'For lists of what waits.';
create index dead_letters_closed on oncely.dead_letters (updated_at) where state in ('requeued', 'discarded');
comment on index oncely.dead_letters_closed is 'For the garbage collection, and for the sweep of the queues.';
create index dead_letters_id on oncely.dead_letters (id);
comment on index oncely.dead_letters_id is 'For "oncely failed show ID", which names no tenant.';
create index dead_letters_key on oncely.dead_letters (hashtextextended(key, 0));
comment on index oncely.dead_letters_key is 'By key: compare hashtextextended(key, 0), then the key.';

create view oncely.dead_letter_groups as
select tenant, consumer, failure_group, reason, error_code, max(detail) as detail,
    count(*) filter (where state = 'waiting') as waiting,
    count(*) filter (where state = 'requeueing') as requeueing,
    count(*) filter (where state = 'requeued') as requeued,
    count(*) filter (where state = 'discarded') as discarded,
    count(*) filter (where state in ('waiting', 'requeueing') and generation > 1) as came_back,
    min(dead_lettered_at) as first_at,
    max(dead_lettered_at) as last_at
from oncely.dead_letters
group by tenant, consumer, failure_group, reason, error_code;
comment on view oncely.dead_letter_groups is 'Dead letters by what failed alike: how many wait, were requeued, were discarded, and came back after that.';

create table oncely.operator_actions (
    tenant text collate "C" not null,
    id uuid not null,
    occurred_at timestamptz not null,
    actor text not null,
    verb text collate "C" not null,
    filter jsonb not null,
    count bigint not null,
    reason text,
    constraint operator_actions_pkey primary key (tenant, id)
);
comment on table oncely.operator_actions is 'Append-only: what people did, in the transaction in which they did it.';
comment on column oncely.operator_actions.tenant is 'Whose messages; empty where the action spans tenants.';
comment on column oncely.operator_actions.id is 'Random (version 7); says nothing about order.';
comment on column oncely.operator_actions.occurred_at is 'When, by the database''s clock.';
comment on column oncely.operator_actions.actor is 'Who: the database''s session user, and the user of the operating system.';
comment on column oncely.operator_actions.verb is 'What: requeue or discard.';
comment on column oncely.operator_actions.filter is 'Which rows were asked for.';
comment on column oncely.operator_actions.count is 'How many rows it was done to.';
comment on column oncely.operator_actions.reason is 'Why, in the person''s words.';

do $$
declare
    role text;
begin
    for role in
        select rolname from pg_roles where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
    loop
        case role
            when 'oncely_worker' then
                execute format('grant select, insert, update on oncely.dead_letters to %I', role);
            when 'oncely_relay' then
                -- The garbage collection, and nothing of the messages. SELECT … FOR UPDATE takes the privilege to update.
                execute format('grant select (tenant, id, state, updated_at, swept_at), update (swept_at), delete on oncely.dead_letters to %I', role);
            when 'oncely_operator' then
                execute format('grant select, update, delete on oncely.dead_letters to %I', role);
                execute format('grant select, insert on oncely.operator_actions to %I', role);
                execute format('grant select on oncely.dead_letter_groups to %I', role);
            when 'oncely_auditor' then
                -- Neither body nor headers: they are the message itself.
                execute format('grant select (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id, state, generation, times, failure_group, exchange, routing_key, fingerprint, properties, body_size, whole, updated_at, swept_at) on oncely.dead_letters to %I', role);
                execute format('grant select on oncely.operator_actions, oncely.dead_letter_groups to %I', role);
        end case;
    end loop;
end
$$;
