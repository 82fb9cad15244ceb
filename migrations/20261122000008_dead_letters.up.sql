set local search_path = pg_catalog, pg_temp;

-- Holds a searchable copy of each dead letter: reading a dead-letter queue can empty it (each read counts against a
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
    encrypted_by text collate "C",
    body_size bigint not null,
    from_client boolean not null default false,
    whole boolean generated always as (body is not null) stored,
    stored_size bigint generated always as (
        coalesce(octet_length(body), 0) + coalesce(octet_length(headers::text), 0)
    ) stored,
    omitted text collate "C",
    updated_at timestamptz not null,
    swept_at timestamptz,
    constraint dead_letters_pkey primary key (tenant, id),
    constraint dead_letters_state check (state in ('waiting', 'requeueing', 'requeued', 'discarded')),
    -- Only a message that is stored whole is published again from here.
    constraint dead_letters_whole check (body is null or properties is not null),
    constraint dead_letters_omitted check (
        omitted is null or body is null and omitted in ('max_body', 'headers', 'cipher', 'quota', 'right', 'room')
    ),
    constraint dead_letters_encrypted_by check (octet_length(encrypted_by) between 1 and 255),
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
    'The body; null where it is not stored (omitted says why): then only the queue has the message.';
comment on column oncely.dead_letters.encrypted_by is
    'The id of the key that encrypted the body ([encryption] keys); null where it is as it came. The database never '
    'sees the key.';
comment on column oncely.dead_letters.body_size is 'Bytes of the body, as it came.';
comment on column oncely.dead_letters.from_client is
    'Stored by oncely.fail: where it is whole, this row alone has the message, and no dead-letter queue a copy that '
    'Oncely knows. It is published through the default exchange.';
comment on column oncely.dead_letters.whole is
    'The row holds the message, so that it is published again from here; else from the queue.';
comment on column oncely.dead_letters.stored_size is
    'Bytes of the body and of the headers as far as they are stored here: what counts of a tenant''s quota.';
comment on column oncely.dead_letters.omitted is
    'Why the body is not stored: max_body (it is over dead_letters.max_body); headers (they nest too deep to be '
    'stored); cipher (it could not be encrypted); quota (it would not have fitted into what its tenant may have '
    'stored; neither headers nor body are); right (the login that stored it has no right to requeue to the queue); '
    'room (the letter was closed, and made room for others of its tenant).';
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
-- Oncely makes no copy of a message that is older than the retention that would recognise it. A letter being requeued
-- may have been published already: its key stays until that is known.
create index dead_letters_requeueing on oncely.dead_letters (tenant, consumer, key)
where state = 'requeueing';
comment on index oncely.dead_letters_requeueing is 'For the garbage collection: the keys of these letters stay.';
create index dead_letters_id on oncely.dead_letters (id);
comment on index oncely.dead_letters_id is 'For "oncely failed show ID", which names no tenant.';
create index dead_letters_key on oncely.dead_letters (hashtextextended(key, 0));
comment on index oncely.dead_letters_key is 'By key: compare hashtextextended(key, 0), then the key.';

create index dead_letters_stored on oncely.dead_letters (tenant, state, updated_at) include (stored_size)
where stored_size > 0;
comment on index oncely.dead_letters_stored is
    'For the count of what is stored of each tenant, and for closed letters that make room.';
create index dead_letters_encrypted on oncely.dead_letters (encrypted_by)
where encrypted_by is not null and body is not null;
comment on index oncely.dead_letters_encrypted is 'For those who ask which keys are still needed.';
create index dead_letters_left_out on oncely.dead_letters (tenant)
where omitted = 'quota' and state in ('waiting', 'requeueing');
comment on index oncely.dead_letters_left_out is 'For the count of open letters that are not stored for their quota.';

-- Limits how much of a tenant's letters is stored, so that a tenant that sends unprocessable messages fills its own
-- quota, and not the database. Beyond it a letter keeps its row, and only the dead-letter queue has its message:
-- nothing is lost, and no other tenant's letters make room. Counting on a message's path would cost as much as the rows
-- counted, and one row a tenant that every batch changes would make lanes wait for each other, until a commit. So a
-- transaction that stores letters adds a row of its own, in the same statement, and no session waits; relays count the
-- letters every minute, and remove the rows counted with them, by one snapshot. Concurrent batches don't see each
-- other's letters: by that much, one batch a lane, a quota may be passed.
create table oncely.tenant_limits (
    tenant text collate "C" not null,
    letters bigint,
    letter_bytes bigint,
    events bigint,
    event_bytes bigint,
    retention interval,
    longest_retention interval,
    former_retention interval,
    former_until timestamptz,
    changed_at timestamptz not null,
    changed_by text not null,
    constraint tenant_limits_pkey primary key (tenant),
    constraint tenant_limits_letters check (letters >= 0),
    constraint tenant_limits_letter_bytes check (letter_bytes >= 0),
    constraint tenant_limits_events check (events >= 0 and event_bytes >= 0),
    constraint tenant_limits_retention check (
        least(retention, longest_retention, former_retention) >= interval '1 second'
        and greatest(retention, longest_retention, former_retention) <= interval '3650 days'
    ),
    constraint tenant_limits_have_no_months check (
        (extract(year from retention), extract(month from retention)) = (0, 0)
        and (extract(year from longest_retention), extract(month from longest_retention)) = (0, 0)
        and (extract(year from former_retention), extract(month from former_retention)) = (0, 0)
    ),
    constraint tenant_limits_times check (
        least(changed_at, former_until) >= '1970-01-01 00:00:00+00'
        and greatest(changed_at, former_until) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.tenant_limits is
    'What an operator has said for a tenant (oncely tenant limit), instead of the configuration.';
comment on column oncely.tenant_limits.tenant is 'Whose; empty: of messages that have no valid tenant.';
comment on column oncely.tenant_limits.letters is
    'Of how many of its dead letters the message may be stored; null: dead_letters.tenant_letters.';
comment on column oncely.tenant_limits.letter_bytes is
    'How many bytes of their bodies and headers; null: dead_letters.tenant_bytes.';
comment on column oncely.tenant_limits.events is
    'How many of its events may wait before a client''s are refused; null: oncely.cell.tenant_events.';
comment on column oncely.tenant_limits.event_bytes is
    'How many bytes of their payloads and headers; null: oncely.cell.tenant_event_bytes.';
comment on column oncely.tenant_limits.retention is
    'How long its keys are remembered, whatever the consumer; null: as each consumer says. What counts in the end: '
    'oncely.tenant_retention.';
comment on column oncely.tenant_limits.longest_retention is
    'The longest that was ever said: for letters whose key was known under that one. A row that has one stays.';
comment on column oncely.tenant_limits.former_retention is
    'What was said before; until former_until the longest of all counts. Null: as each consumer said.';
comment on column oncely.tenant_limits.former_until is
    'When the last mirror entry is over that may have been written under the retention of before.';
comment on column oncely.tenant_limits.changed_at is 'When it was said.';
comment on column oncely.tenant_limits.changed_by is
    'Who said it: the database''s session user, and the user that it named.';

create table oncely.letter_usage (
    tenant text collate "C" not null,
    letters bigint not null,
    bytes bigint not null,
    left_out bigint not null,
    events bigint not null default 0,
    event_bytes bigint not null default 0,
    counted_at timestamptz not null,
    constraint letter_usage_pkey primary key (tenant),
    constraint letter_usage_times check (
        counted_at between '1970-01-01 00:00:00+00' and '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.letter_usage is
    'What is stored of each tenant''s dead letters, and how many of its events wait, as relays counted it last.';
comment on column oncely.letter_usage.tenant is 'Whose.';
comment on column oncely.letter_usage.letters is 'Letters of whose message something is stored.';
comment on column oncely.letter_usage.bytes is 'Bytes of their bodies and headers.';
comment on column oncely.letter_usage.left_out is 'Open letters whose message is not stored, for the quota.';
comment on column oncely.letter_usage.events is 'Events that wait to be published, parked ones too.';
comment on column oncely.letter_usage.event_bytes is 'Bytes of their payloads and headers.';
comment on column oncely.letter_usage.counted_at is 'When they were counted.';
create index letter_usage_left_out on oncely.letter_usage (tenant) where left_out > 0;
comment on index oncely.letter_usage_left_out is 'For those who tell which tenants are over their quota.';

create table oncely.letter_growth (
    tenant text collate "C" not null,
    id uuid not null default gen_random_uuid(),
    letters bigint not null,
    bytes bigint not null,
    constraint letter_growth_pkey primary key (tenant, id),
    -- Bounds the growth of a batch, whatever a login says.
    constraint letter_growth_letters check (letters between 0 and 1000000000),
    constraint letter_growth_bytes check (bytes between 0 and 1000000000000)
);
comment on table oncely.letter_growth is
    'What was stored of a tenant''s dead letters since they were counted: a row of each batch that stored some.';
comment on column oncely.letter_growth.tenant is 'Whose.';
comment on column oncely.letter_growth.id is 'Random.';
comment on column oncely.letter_growth.letters is 'How many letters more.';
comment on column oncely.letter_growth.bytes is 'How many bytes more.';

-- from functions/count_letters.sql
create or replace function oncely.count_letters(letters bigint, letter_bytes bigint) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    crowded text;
    emptied bigint;
    room bigint;
begin
    -- One count at a time: of two counts, the older might be written last, without the growth that the newer removed.
    perform from oncely.locks as k where k.name = 'count_letters' and k.pid = 0 for update skip locked;
    if not found then
        return null;
    end if;
    update oncely.locks as k set since = at where k.name = 'count_letters' and k.pid = 0;
    -- Uses one snapshot: a row of growth is seen, and removed, exactly where its letters are.
    with counted as (
        select d.tenant, count(*) as letters, sum(d.stored_size) as bytes
        from oncely.dead_letters as d
        where d.stored_size > 0
        group by d.tenant
    ), left_out as (
        select d.tenant, count(*) as letters
        from oncely.dead_letters as d
        where d.omitted = 'quota' and d.state in ('waiting', 'requeueing')
        group by d.tenant
    ), waiting as (
        select e.tenant, count(*) as events,
            sum(octet_length(e.payload)::bigint + coalesce(pg_column_size(e.headers), 0)) as bytes
        from oncely.events as e
        group by e.tenant
    ), gone as (
        delete from oncely.letter_growth
    )
    insert into oncely.letter_usage as u (tenant, letters, bytes, left_out, events, event_bytes, counted_at)
    select tenant, coalesce(c.letters, 0), coalesce(c.bytes, 0), coalesce(l.letters, 0), coalesce(w.events, 0),
        coalesce(w.bytes, 0), at
    from counted as c
    full join left_out as l using (tenant)
    full join waiting as w using (tenant)
    on conflict (tenant) do update
    set letters = excluded.letters, bytes = excluded.bytes, left_out = excluded.left_out, events = excluded.events,
        event_bytes = excluded.event_bytes, counted_at = excluded.counted_at;
    delete from oncely.letter_usage as u where u.counted_at <> at;
    -- A tenant that is about to run out of room gets some from closed letters: a thousand a time, oldest first.
    room := 0;
    for crowded in
        select u.tenant
        from oncely.letter_usage as u
        left join oncely.tenant_limits as l on l.tenant = u.tenant
        where u.letters >= coalesce(l.letters, count_letters.letters) * 0.9
            or u.bytes >= coalesce(l.letter_bytes, count_letters.letter_bytes) * 0.9
    loop
        with closed as materialized (
            select d.tenant, d.id
            from oncely.dead_letters as d
            where d.tenant = crowded and d.state in ('requeued', 'discarded') and d.stored_size > 0
            order by d.updated_at
            limit 1000
            for update skip locked
        )
        update oncely.dead_letters as d
        set body = null, encrypted_by = null, headers = null, omitted = 'room'
        from closed as c
        where d.tenant = crowded and d.tenant = c.tenant and d.id = c.id;
        get diagnostics emptied = row_count;
        room := room + emptied;
    end loop;
    return room;
end
$$;
comment on function oncely.count_letters is
    'Counts what is stored of each tenant''s dead letters, given what a tenant may have stored by default, and which '
    'events wait. Where a tenant has used nine tenths of its room for letters, a thousand of its closed letters lose '
    'their message; returns of how many that is. Null where another session is counting.';
revoke execute on function oncely.count_letters from public;

-- from functions/collect_dead_letters.sql
-- Keeps letters at least as long as the trail: the floor is the schema owner's to set, and neither the caller's time
-- nor a clock that jumped brings it nearer.
create or replace function oncely.collect_dead_letters(closed_before timestamptz, most bigint, unit text default '')
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before timestamptz;
    tenants text[];
    ids uuid[];
    gone bigint;
begin
    select least(
            collect_dead_letters.closed_before, least(u.clock_seen_at, clock_timestamp()) - c.audit_floor
        )
    into before
    from oncely.maintenance as u
    cross join oncely.cell as c;
    -- Skips letters that wait, and letters without a later sweep of their queue: a copy left there would be unknown.
    execute format(
        $lock$
        select array_agg(l.tenant), array_agg(l.id)
        from (
            select d.tenant, d.id
            from %s as d
            where d.state in ('requeued', 'discarded') and d.updated_at < $1 and d.dead_lettered_at < $1
                and d.swept_at is not null
            order by d.updated_at
            limit $2
            for update skip locked
        ) as l
        $lock$,
        oncely.unit_table(unit, 'dead_letters')
    ) using before, most into tenants, ids;
    delete from oncely.dead_letters as d
    using unnest(tenants, ids) as l (tenant, id)
    where oncely.in_group(d.tenant, tenants) and d.tenant = l.tenant and d.id = l.id;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.collect_dead_letters is
    'Deletes a bounded batch of a unit''s letters that were requeued or discarded before a time, and none that was '
    'closed after '
    'oncely.cell.audit_floor ago. Returns how many that is. For the garbage collection.';
revoke execute on function oncely.collect_dead_letters from public;

-- from functions/limit_tenant.sql
create or replace function oncely.limit_tenant(
    tenant text, letters bigint, letter_bytes bigint, os_user text, reason text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
begin
    if limit_tenant.letters < 0 or limit_tenant.letter_bytes < 0 then
        raise exception using errcode = 'ONC11', message = 'oncely: a limit is not below 0';
    end if;
    insert into oncely.tenant_limits as l (tenant, letters, letter_bytes, changed_at, changed_by)
    values (
        limit_tenant.tenant, limit_tenant.letters, limit_tenant.letter_bytes, at,
        concat(session_login, ' (', left(limit_tenant.os_user, 255), ')')
    )
    on conflict (tenant) do update
    set letters = excluded.letters, letter_bytes = excluded.letter_bytes, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    delete from oncely.tenant_limits as l
    where l.tenant = limit_tenant.tenant and l.letters is null and l.letter_bytes is null and l.events is null
        and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        limit_tenant.tenant, 'limit tenant',
        jsonb_build_object('letters', limit_tenant.letters, 'letter_bytes', limit_tenant.letter_bytes), 1,
        limit_tenant.reason, limit_tenant.os_user
    );
end
$$;
comment on function oncely.limit_tenant is
    'Says how much of a tenant''s dead letters may be stored; null for what the configuration says. Recorded in '
    'operator_actions.';
revoke execute on function oncely.limit_tenant from public;

-- from functions/limit_events.sql
create or replace function oncely.limit_events(
    tenant text, events bigint, event_bytes bigint, os_user text, reason text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_argument('tenant', limit_events.tenant);
    if limit_events.events < 0 or limit_events.event_bytes < 0 then
        raise exception using errcode = 'ONC11', message = 'oncely: a limit is not below 0';
    end if;
    insert into oncely.tenant_limits as l (tenant, events, event_bytes, changed_at, changed_by)
    values (
        limit_events.tenant, limit_events.events, limit_events.event_bytes, clock_timestamp(),
        concat(session_login, ' (', left(limit_events.os_user, 255), ')')
    )
    on conflict (tenant) do update
    set events = excluded.events, event_bytes = excluded.event_bytes, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    delete from oncely.tenant_limits as l
    where l.tenant = limit_events.tenant and l.letters is null and l.letter_bytes is null and l.events is null
        and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        limit_events.tenant, 'limit events',
        jsonb_build_object('events', limit_events.events, 'event_bytes', limit_events.event_bytes), 1,
        limit_events.reason, limit_events.os_user
    );
end
$$;
comment on function oncely.limit_events is
    'Says how many of a tenant''s events may wait, and how many bytes of them, before oncely.emit refuses those of '
    'clients; null: what oncely.cell says. Recorded in operator_actions.';
revoke execute on function oncely.limit_events from public;

-- from functions/set_tenant_retention.sql
create or replace function oncely.set_tenant_retention(
    tenant text, retention interval, os_user text, reason text
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz;
    who constant text := concat(session_user, ' (', left(set_tenant_retention.os_user, 255), ')');
    longest_entry interval;
    known record;
begin
    perform oncely.check_argument('tenant', set_tenant_retention.tenant);
    if set_tenant_retention.retention is not null then
        retention := justify_hours(oncely.checked_time(
            'a retention', set_tenant_retention.retention, interval '1 second', interval '3650 days'
        ));
    end if;
    -- Takes turns with register_mirror_ttl: a relay not counted here has yet to read the value set here.
    select c.mirror_ttl into longest_entry from oncely.cell as c for update;
    at := clock_timestamp();
    insert into oncely.tenant_limits as l (tenant, changed_at, changed_by)
    values (set_tenant_retention.tenant, at, who)
    on conflict (tenant) do nothing;
    select l.retention, l.former_retention, l.former_until into known
    from oncely.tenant_limits as l
    where l.tenant = set_tenant_retention.tenant
    for update;
    -- Earlier entries live on; and whether null ("as the consumers say") is shorter depends on the consumer.
    if (set_tenant_retention.retention >= known.retention) is not true and longest_entry > interval '0'
        and set_tenant_retention.retention is distinct from known.retention
    then
        update oncely.tenant_limits as l
        set former_retention = greatest(
                known.retention, case when known.former_until > at then known.former_retention end
            ),
            former_until = greatest(known.former_until, at + longest_entry + interval '1 hour')
        where l.tenant = set_tenant_retention.tenant;
    end if;
    update oncely.tenant_limits as l
    set retention = set_tenant_retention.retention,
        longest_retention = greatest(l.longest_retention, set_tenant_retention.retention), changed_at = at,
        changed_by = who
    where l.tenant = set_tenant_retention.tenant;
    delete from oncely.tenant_limits as l
    where l.tenant = set_tenant_retention.tenant and l.letters is null and l.letter_bytes is null
        and l.events is null and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        set_tenant_retention.tenant, 'set retention',
        jsonb_build_object('from', known.retention::text, 'to', set_tenant_retention.retention::text), 1,
        set_tenant_retention.reason, set_tenant_retention.os_user
    );
    return known.retention;
end
$$;
comment on function oncely.set_tenant_retention is
    'Sets how long a tenant''s keys are remembered, longer or shorter than its consumers say; null: as they say. '
    'Recorded in operator_actions. Returns what it was. What counts in the end: oncely.tenant_retention.';
revoke execute on function oncely.set_tenant_retention from public;

-- end of functions

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

-- from functions/list_letters.sql
-- Lists letters (see oncely.visible_tenants), without messages, which an auditor may not read.
create or replace function oncely.list_letters(
    of_tenant text default null, of_consumer text default null, of_queue text default null,
    of_reason text default null, of_group text default null, of_key text default null,
    since timestamptz default null, until timestamptz default null, of_ids uuid[] default null,
    of_states text[] default null, behind timestamptz default null, behind_id uuid default null,
    most bigint default 100
)
returns table (
    tenant text, id uuid, consumer text, key text, dead_lettered_at timestamptz, reason text, error_code text,
    detail text, attempt integer, queue text, worker text, trace_id text, state text, generation integer,
    times integer, failure_group text, exchange text, routing_key text, body_size bigint, whole boolean,
    encrypted_by text, omitted text, updated_at timestamptz, swept_at timestamptz
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select d.tenant, d.id, d.consumer, d.key, oncely.bounded(d.dead_lettered_at), d.reason, d.error_code, d.detail,
        d.attempt, d.queue, d.worker, d.trace_id, d.state, d.generation, d.times, d.failure_group, d.exchange,
        d.routing_key, d.body_size, d.whole, d.encrypted_by, d.omitted, oncely.bounded(d.updated_at),
        oncely.bounded(d.swept_at)
    from oncely.dead_letters as d
    where (visible is null or d.tenant = any (visible))
        and (of_tenant is null or d.tenant = of_tenant)
        and (of_consumer is null or d.consumer = of_consumer)
        and (of_queue is null or d.queue = of_queue)
        and (of_reason is null or d.reason = of_reason)
        and (of_group is null or d.failure_group = of_group)
        and (of_key is null or (hashtextextended(d.key, 0) = hashtextextended(of_key, 0) and d.key = of_key))
        and (since is null or d.dead_lettered_at >= since)
        and (until is null or d.dead_lettered_at < until)
        and (of_ids is null or d.id = any (of_ids))
        and (of_states is null or d.state = any (of_states))
        and (behind is null or (d.dead_lettered_at, d.id) < (behind, behind_id))
    order by d.dead_lettered_at desc, d.id desc
    limit most;
end
$$;
comment on function oncely.list_letters is
    'Dead letters without their messages, the newest first, behind one where it is given. For operators and auditors; '
    'a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_letters from public;

-- from functions/list_letter_groups.sql
create or replace function oncely.list_letter_groups(
    of_tenant text default null, of_consumer text default null, of_queue text default null,
    of_reason text default null, of_group text default null, of_key text default null,
    since timestamptz default null, until timestamptz default null, most bigint default 100
)
returns table (
    consumer text, failure_group text, reason text, error_code text, detail text, waiting bigint, requeueing bigint,
    requeued bigint, discarded bigint, came_back bigint, first_at timestamptz, last_at timestamptz
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
#variable_conflict use_variable
declare
    visible constant text[] := oncely.visible_tenants();
begin
    -- Groups the newest 100,000 that match. Reads the last letter's detail only for groups that are returned.
    for consumer, failure_group, reason, error_code, waiting, requeueing, requeued, discarded, came_back, first_at,
        last_at in
        select n.consumer, n.failure_group, n.reason, n.error_code,
            count(*) filter (where n.state = 'waiting'), count(*) filter (where n.state = 'requeueing'),
            count(*) filter (where n.state = 'requeued'), count(*) filter (where n.state = 'discarded'),
            count(*) filter (where n.state in ('waiting', 'requeueing') and n.generation > 1),
            min(n.dead_lettered_at), max(n.dead_lettered_at)
        from (
            select d.consumer, d.failure_group, d.reason, d.error_code, d.state, d.generation, d.dead_lettered_at
            from oncely.dead_letters as d
            where (visible is null or d.tenant = any (visible))
                and (of_tenant is null or d.tenant = of_tenant)
                and (of_consumer is null or d.consumer = of_consumer)
                and (of_queue is null or d.queue = of_queue)
                and (of_reason is null or d.reason = of_reason)
                and (of_group is null or d.failure_group = of_group)
                and (of_key is null or (hashtextextended(d.key, 0) = hashtextextended(of_key, 0) and d.key = of_key))
                and (since is null or d.dead_lettered_at >= since)
                and (until is null or d.dead_lettered_at < until)
            order by d.dead_lettered_at desc
            limit 100000
        ) as n
        group by n.consumer, n.failure_group, n.reason, n.error_code
        order by count(*) filter (where n.state in ('waiting', 'requeueing')) desc, max(n.dead_lettered_at) desc
        limit most
    loop
        select d.detail into detail
        from oncely.dead_letters as d
        where d.dead_lettered_at = last_at and d.consumer = list_letter_groups.consumer
            and d.failure_group = list_letter_groups.failure_group and d.reason = list_letter_groups.reason
            and d.error_code is not distinct from list_letter_groups.error_code
            and (visible is null or d.tenant = any (visible))
            and (of_tenant is null or d.tenant = of_tenant)
        limit 1;
        first_at := oncely.bounded(first_at);
        last_at := oncely.bounded(last_at);
        return next;
    end loop;
end
$$;
comment on function oncely.list_letter_groups is
    'Dead letters by what failed alike, those that wait most first. For operators and auditors; a member of '
    'oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_letter_groups from public;

-- from functions/may_be_forgotten.sql
-- Decides whether a key may go, for the garbage collection and the erasure of a tenant. A key is needed for as long as
-- a copy of its message may come: for its retention after the last event on it (a claim, a failure, a requeue), pauses
-- left out, and for as long as a letter or a mirror record refers to it.
create or replace function oncely.may_be_forgotten(
    tenant text,
    consumer text,
    key text,
    status oncely.key_status,
    reason text,
    created_at timestamptz,
    completed_at timestamptz,
    not_before timestamptz,
    expires_at timestamptz,
    fencing_token bigint,
    at timestamptz,
    -- Where the key's retention begins at that time: oncely.forgotten_before.
    before timestamptz,
    -- When the keys of the oldest mirror record were completed; null where there is none.
    oldest_record timestamptz,
    -- The key's letters are being closed.
    without_letters boolean default false
) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Called for each key, with plans that are kept, maybe from when other tables were short.
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    last_word constant timestamptz := case
        when expires_at is not null then created_at
        when status = 'IN_PROGRESS'
            -- The token of a lease is the time of its claim.
            then greatest(created_at, not_before, to_timestamp(fencing_token / 1000000.0))
        else completed_at
    end;
begin
    -- A null before keeps all keys of the consumer, too.
    if (last_word <= before) is not true or not_before > at then
        return false;
    end if;
    -- A mirror entry would outlive the key.
    if status = 'COMPLETED' and completed_at >= oldest_record then
        return false;
    end if;
    -- A copy may be on its way that only the key recognises.
    if not without_letters and exists (
        select from oncely.dead_letters as d
        where d.state = 'requeueing' and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.key = may_be_forgotten.key
    ) then
        return false;
    end if;
    if without_letters then
        return true;
    end if;
    -- Only the key records its steps' external calls, and its letter may need them.
    if status <> 'COMPLETED' and fencing_token is not null and exists (
        select from oncely.dead_letters as d
        where hashtextextended(d.key, 0) = hashtextextended(may_be_forgotten.key, 0)
            and d.key = may_be_forgotten.key and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.state <> 'discarded'
    ) then
        return false;
    end if;
    -- Set aside by hand: the message may come at any time, and must not run then. Afterwards its letter decides.
    if status = 'FAILED' and reason = 'parked' then
        return exists (
            select from oncely.dead_letters as d
            where hashtextextended(d.key, 0) = hashtextextended(may_be_forgotten.key, 0)
                and d.key = may_be_forgotten.key and d.tenant = may_be_forgotten.tenant
                and d.consumer = may_be_forgotten.consumer
        );
    end if;
    return true;
end
$$;
comment on function oncely.may_be_forgotten is
    'May this key be deleted at that time? Not before its retention is over since the last word on it (before: '
    'oncely.forgotten_before), and not while a mirror record, a letter or a parked message may still need it.';
revoke execute on function oncely.may_be_forgotten from public;

-- from functions/key_forgotten_before.sql
-- Reads the consumer and the tenant's limits in a function: a condition on rows of one part of a table must name no
-- other table, on an engine that spreads tables over nodes.
create or replace function oncely.key_forgotten_before(tenant text, consumer text, own interval, at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select oncely.forgotten_before(
            at,
            coalesce(
                own,
                oncely.tenant_retention(
                    at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until),
                    c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
                )
            ),
            coalesce(c.paused, '{}')
        )
        from oncely.cell as e
        left join oncely.consumers as c on c.consumer = key_forgotten_before.consumer
        left join oncely.tenant_limits as l on l.tenant = key_forgotten_before.tenant
        -- By its index: a scan where none is allowed looks so expensive that the statement is compiled for each key.
        where e.only_row
    );
end
$$;
comment on function oncely.key_forgotten_before is
    'oncely.forgotten_before for a key: by its own retention, its tenant''s or its consumer''s.';
revoke execute on function oncely.key_forgotten_before from public;

-- from functions/delete_keys.sql
-- Deletes keys for logins without a right to delete: a key deleted too early is a message that runs again, and with
-- that right a login may lock the whole table. Uses the clock as far as it is explained (oncely.observe_clock). Keeps
-- keys that a run holds, and keys that may not be forgotten.
create or replace function oncely.delete_keys(
    places tid[], status oncely.key_status default null, unit text default ''
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Finds the keys by their places, and looks into other tables for each key, which may be short when that is planned.
set enable_seqscan = off
as $$
declare
    at timestamptz;
    database_time timestamptz := clock_timestamp();
    oldest_record timestamptz;
    gone bigint;
begin
    select least(u.clock_seen_at, database_time) into at from oncely.maintenance as u;
    -- The first entry of an index. A search for any record that is old enough was planned as a scan of the table, which
    -- is short and full of dead rows.
    select min(coalesce(q.completed_at, q.created_at)) into oldest_record from oncely.mirror_queue as q;
    -- The name of a table can't be a parameter; it is the catalogue's.
    execute format(
        $delete$
        delete from %s as i
        where i.ctid = any ($1)
            -- Rechecked for the new version of a row after a lock wait.
            and i.status = coalesce($2, i.status)
            and (i.owner is null or i.not_before <= $4)
            and oncely.may_be_forgotten(
                i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before,
                i.expires_at, i.fencing_token, $3,
                oncely.key_forgotten_before(i.tenant, i.consumer, i.expires_at - i.created_at, $3),
                $5
            )
        $delete$,
        oncely.unit_table(unit, 'idempotency_keys')
    ) using places, status, at, database_time, oldest_record;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_keys is
    'Deletes the keys at these places of a unit''s table that may be forgotten (oncely.may_be_forgotten) and that no '
    'run holds; those of one status alone, where it is given. Returns how many that is. For the garbage collection.';
revoke execute on function oncely.delete_keys from public;

-- from functions/letter_memories.sql
-- Classifies the keys of letters. A letter that waited longer than its key is remembered is published again only if the
-- trail, kept longer, shows no effect. Reads all letters in one statement, by index probes whatever the tables' sizes
-- (hence limit and offset, which leave no other plan): planned for each letter, the trail's partitions took a
-- millisecond each time.
create or replace function oncely.letter_memories(tenants text[], letters uuid[], at timestamptz)
returns table (tenant text, id uuid, memory text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
-- Plans with the letters: a kept plan might be from when the tables were short.
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
    select d.tenant, d.id,
        case
            when d.tenant = '' or d.key = '' then 'NONE'
            when i.status is not null then i.status::text
            -- Checked for letters of any age: a key may have been collected under a shorter retention than the present
            -- one, or under its claim's own. No guarantee covers an effect older than the key's retention.
            when exists (
                select from oncely.audit as a
                where hashtextextended(a.key, 0) = hashtextextended(d.key, 0) and a.key = d.key
                  and a.tenant = d.tenant and a.consumer = d.consumer and a.outcome in ('completed', 'refused')
                  and a.occurred_at > m.began
                offset 0
            ) then 'TOOK_EFFECT'
            when s.until_time <= m.began then 'NONE'
            -- Before the message became a dead letter its key was unknown; since then the trail shows no effect.
            when s.until_time <= d.dead_lettered_at and d.dead_lettered_at > oncely.forgotten_before(
                letter_memories.at,
                oncely.tenant_retention(
                    letter_memories.at, c.retention, c.redelivery_horizon, e.mirror_ttl, t.retention,
                    t.former_retention, t.former_until
                ),
                c.paused
            )
            then 'NONE'
            else 'FORGOTTEN'
        end
    from unnest(letter_memories.tenants, letter_memories.letters) as l (tenant, id)
    join oncely.dead_letters as d
        on oncely.in_group(d.tenant, letter_memories.tenants) and d.tenant = l.tenant and d.id = l.id
    left join lateral (
        select k.status from oncely.idempotency_keys as k
        where k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
        limit 1
    ) as i on true
    left join oncely.consumers as c on c.consumer = d.consumer
    left join oncely.tenant_limits as t on t.tenant = d.tenant
    cross join oncely.cell as e
    cross join lateral (
        select case
                when i.status is not null then null
                -- Claimed anew: an earlier completion belongs to another message. For an unregistered consumer (of a
                -- client), each key has its own retention, and was remembered when the letter was stored.
                when d.reason = 'incomplete_claim' or c.retention is null then d.dead_lettered_at
                -- Under a former retention the key was known for longer; a clock may have been ahead.
                else oncely.forgotten_before(
                    least(d.dead_lettered_at, letter_memories.at),
                    -- greatest ignores nulls, and here is none: without a consumer, the branch above applies.
                    greatest(c.longest_retention, t.longest_retention),
                    c.paused
                )
            end as began
        offset 0
    ) as m
    cross join (
        select coalesce(max(a.until_time), '-infinity') as until_time from oncely.audit_seals as a
        where a.kind = 'dropped'
    ) as s;
end
$$;
comment on function oncely.letter_memories is
    'What is known of the keys of dead letters: the status; NONE: it never took effect; TOOK_EFFECT: it did, says '
    'the trail, though the key is collected; FORGOTTEN: it can''t be said any more.';
revoke execute on function oncely.letter_memories from public;

-- from functions/reopen_steps.sql
-- Reopens steps. A begun step may have happened, and keeps its key for the other side until its call is known as done
-- or refused. open: an operator allows one more call. An operator's no is a refusal: the next round begins.
create or replace function oncely.reopen_steps(steps jsonb, may_have_happened boolean) returns jsonb
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select case
        when steps is null then null
        else (
            select jsonb_object_agg(
                s.name,
                case
                    when s.step ->> 'state' not in ('started', 'open') then s.step
                    when may_have_happened then s.step || jsonb_build_object('state', 'open')
                    else jsonb_build_object(
                        'state', 'refused', 'round', coalesce((s.step ->> 'round')::integer, 0) + 1, 'token',
                        s.step -> 'token', 'error', 'settled by hand'
                    )
                end
            )
            from jsonb_each(steps) as s (name, step)
        )
    end
$$;
comment on function oncely.reopen_steps is
    'The steps of a key, and those that began may begin again: if they may have happened, as a repeated call with the '
    'same call_key; else in the next round.';

-- from functions/close_letters.sql
create or replace function oncely.close_letters(held oncely.idempotency_keys, at timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    with open as materialized (
        select d.tenant, d.id
        from oncely.dead_letters as d
        where hashtextextended(d.key, 0) = hashtextextended(held.key, 0) and d.key = held.key
            and d.tenant = held.tenant and d.consumer = held.consumer and d.state in ('waiting', 'requeueing')
            and coalesce(oncely.same_payload(held.fingerprint, d.fingerprint), true)
        order by d.tenant, d.id
        for update
    )
    update oncely.dead_letters as d
    set state = 'requeued', updated_at = at,
        -- No dead-letter queue has a copy of a client's letter.
        swept_at = case when d.from_client then at end
    from open as o
    where d.tenant = held.tenant and d.tenant = o.tenant and d.id = o.id;
end
$$;
comment on function oncely.close_letters is
    'Closes the dead letters of a key, which is locked, and takes effect after all: as a requeue does that finds it '
    'done.';
revoke execute on function oncely.close_letters from public;

-- from functions/has_done.sql
create or replace function oncely.has_done(steps jsonb) returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from jsonb_each(steps) as s (name, step) where s.step ->> 'state' = 'done');
end
$$;
comment on function oncely.has_done is 'Is any of these steps done?';

-- from functions/free_keys.sql
create or replace function oncely.free_keys(tenants text[], letters uuid[], repeat_unknown boolean default false)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz := clock_timestamp();
    freed bigint;
begin
    with given_up as materialized (
        select i.tenant, i.consumer, i.key,
            -- The retention of the key starts again.
            oncely.bounded(at + (i.expires_at - i.completed_at)) as expires_at,
            case when i.reason = 'outcome_unknown' then oncely.reopen_steps(i.steps, true) else i.steps end as steps
        from unnest(tenants, letters) as l (tenant, id)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
        join oncely.idempotency_keys as i on i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
        -- oncely.decide_letters has recorded the requeue.
        where oncely.in_group(d.tenant, tenants) and oncely.in_group(i.tenant, tenants)
          and d.state = 'requeueing' and i.status = 'FAILED'
          and coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true)
          and (free_keys.repeat_unknown or i.reason <> 'outcome_unknown')
        order by i.tenant, i.consumer, i.key
        for update of i
    )
    update oncely.idempotency_keys as i
    set status = 'IN_PROGRESS', attempts = 0, crash_attempts = 0, completed_at = null, reason = null, error_code = null,
        not_before = at, expires_at = g.expires_at, steps = g.steps
    from given_up as g
    where oncely.in_group(i.tenant, tenants) and i.tenant = g.tenant and i.consumer = g.consumer and i.key = g.key;
    get diagnostics freed = row_count;
    return freed;
end
$$;
comment on function oncely.free_keys is
    'Makes the keys of dead letters that are being requeued runnable again: only where a key was given up, with this '
    'very payload; with repeat_unknown also what was given up as outcome_unknown, whose call outside may then happen '
    'again. The one way from a final state back to IN_PROGRESS, but for settle_claim. For operators.';
revoke execute on function oncely.free_keys from public;

-- from functions/decide_letters.sql
-- Records an operator's decisions about letters: a login may change their state only by this function, and by the
-- consequences of a decision (oncely.finish_requeue).
create or replace function oncely.decide_letters(
    verb text, tenants text[], ids uuid[], generations integer[], filter jsonb, reason text, os_user text
)
returns table (tenant text, id uuid, generation integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    becomes constant text := case decide_letters.verb
        when 'requeue' then 'requeueing' when 'discard' then 'discarded'
    end;
    of_tenants text[];
    their_ids uuid[];
    their_generations integer[];
begin
    if becomes is null then
        raise exception using errcode = 'ONC11', message = 'oncely: letters are changed by requeue and discard';
    end if;
    -- Changes a letter only in the given generation: one that has come back since is another case.
    with meant as materialized (
        select d.tenant, d.id
        from unnest(decide_letters.tenants, decide_letters.ids, decide_letters.generations)
            as l (tenant, id, generation)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
        where oncely.in_group(d.tenant, decide_letters.tenants) and d.state in ('waiting', 'requeueing')
        order by d.tenant, d.id
        for update of d
    ), changed as (
        update oncely.dead_letters as d
        set state = becomes, updated_at = at,
            -- No dead-letter queue has a copy of a client's letter.
            swept_at = case when d.from_client and becomes = 'discarded' then at end
        from meant as m
        where oncely.in_group(d.tenant, decide_letters.tenants) and d.tenant = m.tenant and d.id = m.id
        returning d.tenant, d.id, d.generation
    )
    select coalesce(array_agg(c.tenant), '{}'), array_agg(c.id), array_agg(c.generation)
    into of_tenants, their_ids, their_generations
    from changed as c;
    perform oncely.record_action(
        case when of_tenants[1] = all (of_tenants) then coalesce(of_tenants[1], '') else '' end, decide_letters.verb,
        decide_letters.filter, cardinality(of_tenants), decide_letters.reason, decide_letters.os_user
    );
    return query
    select d.tenant, d.id, d.generation
    from unnest(of_tenants, their_ids, their_generations) as d (tenant, id, generation);
end
$$;
comment on function oncely.decide_letters is
    'Decides about open dead letters, and records it in operator_actions: requeue (they are requeueing) or discard. '
    'Returns those that were changed. For operators.';
revoke execute on function oncely.decide_letters from public;

-- from functions/finish_requeue.sql
create or replace function oncely.finish_requeue(tenants text[], ids uuid[], generations integer[])
returns table (tenant text, id uuid, generation integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
begin
    return query
    with meant as materialized (
        select d.tenant, d.id
        from unnest(finish_requeue.tenants, finish_requeue.ids, finish_requeue.generations)
            as l (tenant, id, generation)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
        where oncely.in_group(d.tenant, finish_requeue.tenants) and d.state = 'requeueing'
        order by d.tenant, d.id
        for update of d
    )
    update oncely.dead_letters as d
    set state = 'requeued', updated_at = at,
        -- No dead-letter queue has a copy of a client's letter.
        swept_at = case when d.from_client then at end
    from meant as m
    where oncely.in_group(d.tenant, finish_requeue.tenants) and d.tenant = m.tenant and d.id = m.id
    returning d.tenant, d.id, d.generation;
end
$$;
comment on function oncely.finish_requeue is
    'Closes dead letters that are being requeued: they were published, or took effect. Returns those that were '
    'changed. For operators.';
revoke execute on function oncely.finish_requeue from public;

-- end of functions
