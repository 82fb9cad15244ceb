set local search_path = pg_catalog, pg_temp;

-- A searchable copy of each dead letter: looking into a dead-letter queue can empty it (each look counts against a
-- quorum queue's delivery limit), so lists come from here. The queue stays the truth of "nothing is lost".
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
    constraint dead_letters_whole check (body is null or properties is not null),
    constraint dead_letters_times check (
        least(dead_lettered_at, updated_at, swept_at) >= '1970-01-01 00:00:00+00'
        and greatest(dead_lettered_at, updated_at, swept_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.dead_letters is
    'A searchable copy of each dead letter. Requeued and discarded ones are collected after audit.retention, '
    'waiting ones never.';
comment on column oncely.dead_letters.tenant is 'Whose message; empty where the message had no valid one.';
comment on column oncely.dead_letters.id is
    'Derived from identity and body (version 8), so that a message that is dead-lettered again keeps its row; '
    'random (version 7) where the identity is not known.';
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
comment on column oncely.dead_letters.state is
    'waiting; requeueing: decided, not yet known to be published; requeued; discarded.';
comment on column oncely.dead_letters.generation is
    'From 1; grows when a message that was requeued or discarded is dead-lettered again. With the id in the header '
    'x-oncely-dead-letter of the queue''s copy, so that an older copy is told from the current one.';
comment on column oncely.dead_letters.times is 'How often this very message was dead-lettered, redeliveries included.';
comment on column oncely.dead_letters.failure_group is
    'What failed alike: reason, SQLSTATE and a hash of the detail without its numbers and quoted values.';
comment on column oncely.dead_letters.exchange is
    'The exchange it came through, the last time; empty for the default exchange.';
comment on column oncely.dead_letters.routing_key is 'Its routing key; a requeued copy keeps it.';
comment on column oncely.dead_letters.fingerprint is 'As in idempotency_keys; null where nothing is compared.';
comment on column oncely.dead_letters.properties is
    'AMQP properties without the headers; text that is not UTF-8 is {"x": hexadecimal}. Null where the message is not '
    'stored whole.';
comment on column oncely.dead_letters.headers is
    'AMQP headers. Text, integers of 64 bits, booleans and null are themselves; {"type": value} is everything else, '
    'by AMQP''s type letters.';
comment on column oncely.dead_letters.body is
    'The body; null where it is over dead_letters.max_body, or the headers nest too deep to be stored: then only '
    'the queue has the message.';
comment on column oncely.dead_letters.body_size is 'Bytes of the body.';
comment on column oncely.dead_letters.whole is
    'The row holds the message, so that it is published again from here; else from the queue.';
comment on column oncely.dead_letters.updated_at is 'When the state last changed.';
comment on column oncely.dead_letters.swept_at is
    'When the queue was gone through after the letter was requeued or discarded; its copy there is gone.';

create index dead_letters_open on oncely.dead_letters (dead_lettered_at) include (queue, consumer, state, updated_at)
where state in ('waiting', 'requeueing');
comment on index oncely.dead_letters_open is
    'For lists of what waits, and for its number by queue and by consumer: relays count it every few seconds.';
create index dead_letters_dead_lettered_at on oncely.dead_letters (dead_lettered_at);
comment on index oncely.dead_letters_dead_lettered_at is 'For lists of all, by pages, and for groups.';
create index dead_letters_closed on oncely.dead_letters (updated_at)
where state in ('requeued', 'discarded');
comment on index oncely.dead_letters_closed is 'For the garbage collection, and for the sweep of the queues.';
-- Oncely makes no copy of a message that is older than the memory that would recognise it. A letter that is being
-- requeued may have been published already: its key stays until it is known.
create index dead_letters_requeueing on oncely.dead_letters (tenant, consumer, key)
where state = 'requeueing';
comment on index oncely.dead_letters_requeueing is 'For the garbage collection: the keys of these letters stay.';
create index dead_letters_id on oncely.dead_letters (id);
comment on index oncely.dead_letters_id is 'For "oncely failed show ID", which names no tenant.';
create index dead_letters_key on oncely.dead_letters (hashtextextended(key, 0));
comment on index oncely.dead_letters_key is 'By key: compare hashtextextended(key, 0), then the key.';

create view oncely.dead_letter_groups with (security_invoker = true) as
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
comment on view oncely.dead_letter_groups is
    'Dead letters by what failed alike: how many wait, were requeued, were discarded, and came back after that.';

-- What waited longer than its key is remembered is published again only where the trail, which is kept longer, says
-- that it never took effect. Of all letters in one statement, by index probes whatever the tables' sizes (hence the
-- limit and the offset: nothing else may come of them): planned for each letter, the trail's partitions took a
-- millisecond each time.
create function oncely.letter_memories(tenants text[], letters uuid[], at timestamptz)
returns table (tenant text, id uuid, memory text)
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select d.tenant, d.id,
        case
            when d.tenant = '' or d.key = '' then 'NONE'
            when i.status is not null then i.status::text
            -- No key of the consumer is ever collected.
            when c.retention is null then 'NONE'
            -- Asked whatever the letter's age: a key may have been collected by a retention that was shorter than
            -- today's, or by its claim's own. What took effect longer before than a key is remembered is nobody's
            -- promise.
            when exists (
                select from oncely.audit as a
                where hashtextextended(a.key, 0) = hashtextextended(d.key, 0) and a.key = d.key
                  and a.tenant = d.tenant and a.consumer = d.consumer and a.outcome in ('completed', 'refused')
                  and a.occurred_at > m.began
                offset 0
            ) then 'TOOK_EFFECT'
            when s.until_time <= m.began then 'NONE'
            -- Before it became a dead letter its key was not known; since then the trail knows of nothing.
            when s.until_time <= d.dead_lettered_at and d.dead_lettered_at
                > oncely.forgotten_before(letter_memories.at, c.retention, c.paused)
            then 'NONE'
            else 'FORGOTTEN'
        end
    from unnest(letter_memories.tenants, letter_memories.letters) as l (tenant, id)
    join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
    left join lateral (
        select k.status from oncely.idempotency_keys as k
        where k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
        limit 1
    ) as i on true
    left join oncely.consumers as c on c.consumer = d.consumer
    cross join lateral (
        select case
                when i.status is not null then null
                -- Claimed anew: what was completed before is another message's.
                when d.reason = 'incomplete_claim' then d.dead_lettered_at
                -- Under a retention of before its key was known for longer; a clock may have been ahead.
                else oncely.forgotten_before(
                    least(d.dead_lettered_at, letter_memories.at), c.longest_retention, c.paused
                )
            end as began
        offset 0
    ) as m
    cross join (
        select coalesce(max(a.until_time), '-infinity') as until_time from oncely.audit_seals as a
        where a.kind = 'dropped'
    ) as s
$$;
comment on function oncely.letter_memories is
    'What is known of the keys of dead letters: the status; NONE: it never took effect; TOOK_EFFECT: it did, says '
    'the trail, though the key is collected; FORGOTTEN: nobody can say any more.';
revoke execute on function oncely.letter_memories from public;

-- What began and may have happened may begin again, under the same key for the other side.
create function oncely.reopen_steps(steps jsonb, may_have_happened boolean) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when steps is null then null
        else (
            select jsonb_object_agg(
                s.name,
                case
                    when s.step ->> 'state' <> 'started' then s.step
                    when may_have_happened then s.step || jsonb_build_object('state', 'open')
                    else s.step - 'started_at' || jsonb_build_object('state', 'open')
                end
            )
            from jsonb_each(steps) as s (name, step)
        )
    end
$$;
comment on function oncely.reopen_steps is
    'The steps of a key, and those that began may begin again; if they may have happened, by the same window.';

create function oncely.has_done(steps jsonb) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select exists (select from jsonb_each(steps) as s (name, step) where s.step ->> 'state' = 'done')
$$;
comment on function oncely.has_done is 'Is any of these steps done?';

create function oncely.free_keys(tenants text[], letters uuid[], repeat_unknown boolean default false) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    freed bigint;
begin
    update oncely.idempotency_keys as i
    set status = 'IN_PROGRESS', attempts = 0, crash_attempts = 0, completed_at = null, reason = null, not_before = null,
        error_code = null,
        steps = case when i.reason = 'outcome_unknown' then oncely.reopen_steps(i.steps, true) else i.steps end
    from unnest(tenants, letters) as l (tenant, id)
    join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
    where i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key and i.status = 'FAILED'
      and coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true)
      and (free_keys.repeat_unknown or i.reason <> 'outcome_unknown');
    get diagnostics freed = row_count;
    return freed;
end
$$;
comment on function oncely.free_keys is
    'Makes the keys of dead letters runnable again: only where a key was given up, with this very payload; with '
    'repeat_unknown also what was given up as outcome_unknown, whose call outside may then happen again. The one way '
    'from a final state back to IN_PROGRESS, but for settle_claim. For operators.';
revoke execute on function oncely.free_keys from public;
