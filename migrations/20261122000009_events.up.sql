set local search_path = pg_catalog, pg_temp;

-- Defines how a message reaches a handler that is a SQL function, so that a worker needs no Rust from its user, and the
-- handler's answers. The types are an interface: functions of users take them.
create type oncely.message as (
    seq integer,
    attempt integer,
    redelivered boolean,
    published_at timestamptz,
    tenant text,
    consumer text,
    key text,
    payload jsonb,
    body bytea,
    content_type text,
    headers jsonb,
    exchange text,
    routing_key text,
    queue text,
    message_id text,
    correlation_id text,
    reply_to text,
    type text,
    user_id text,
    app_id text,
    trace_id text
);
comment on type oncely.message is 'A message as a handler function gets it.';
comment on column oncely.message.seq is
    'Number within the batch, from 1; the batch form returns it with each response.';
comment on column oncely.message.attempt is 'Which run this is, from 1.';
comment on column oncely.message.redelivered is 'The broker''s flag. A hint, not a count.';
comment on column oncely.message.published_at is 'The publisher''s timestamp property, where it set one.';
comment on column oncely.message.payload is
    'The body as jsonb; null where it is not JSON that PostgreSQL can hold, and where exponents would more than double '
    'it and add over 1 MiB of digits.';
comment on column oncely.message.body is 'The body, byte for byte.';
comment on column oncely.message.headers is 'The AMQP headers; byte strings that are not UTF-8 are left out.';
comment on column oncely.message.type is 'The publisher''s type property.';

create type oncely.result as (seq integer, response jsonb);
comment on type oncely.result is 'One row of what a handler in the batch form returns: exactly one per message.';

-- from functions/reject.sql
create or replace function oncely.reject(message text, detail text default null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC01', message = message, detail = coalesce(detail, '');
end
$$;
comment on function oncely.reject is
    'For handlers: this message can never succeed. Rolls back its effect and dead-letters it as handler_rejected '
    '(SQLSTATE ONC01).';

-- from functions/refuse.sql
-- Refuses a message for business reasons (sold out, account closed). This is no failure: nothing needs repair, and no
-- requeue follows. A refusal is recorded like an effect, with its answer, and makes no dead letter.
create or replace function oncely.refuse(reason text) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC07', message = coalesce(reason, '');
end
$$;
comment on function oncely.refuse is
    'For handlers: no, and that is the answer. Rolls back what the handler wrote for this message (SQLSTATE ONC07); '
    'the key is completed with the response {"refused": reason}, which a duplicate gets again, and the message is '
    'acknowledged.';

-- end of functions

-- Holds events on their way to RabbitMQ, written in the transaction that decided them. Separate from the queue of
-- mirror records: events have other columns and lifetimes, and must not hold back the garbage collection of keys.
create table oncely.events (
    tenant text collate "C" not null,
    id uuid not null,
    created_at timestamptz not null,
    available_at timestamptz not null,
    ordering_number bigint,
    attempts integer not null default 0,
    state text collate "C" not null default 'pending',
    exchange text collate "C" not null,
    routing_key text collate "C" not null,
    ordering_key text collate "C",
    message_id text collate "C",
    content_type text collate "C",
    type text collate "C",
    correlation_id text collate "C",
    reply_to text collate "C",
    app_id text collate "C",
    headers jsonb,
    payload bytea not null,
    reason text collate "C",
    last_error text,
    reply boolean not null default false,
    constraint events_pkey primary key (tenant, id),
    constraint events_state check (state in ('pending', 'parked')),
    constraint events_parked_has_reason check (state <> 'parked' or reason is not null),
    constraint events_ordered check ((ordering_key is null) = (ordering_number is null)),
    constraint events_tenant check (octet_length(tenant) between 1 and 255),
    constraint events_ordering_key check (octet_length(ordering_key) between 1 and 255),
    -- Limits AMQP's short strings. A null passes.
    constraint events_short_strings check (
        octet_length(exchange) <= 255
        and octet_length(routing_key) <= 255
        and (message_id is null or octet_length(message_id) between 1 and 255)
        and (content_type is null or octet_length(content_type) <= 255)
        and (type is null or octet_length(type) <= 255)
        and (correlation_id is null or octet_length(correlation_id) <= 255)
        and (reply_to is null or octet_length(reply_to) <= 255)
        and (app_id is null or octet_length(app_id) <= 255)
    ),
    -- Far more than a frame holds. As text: jsonb stores a number with a hundred thousand digits in some bytes.
    constraint events_headers_size check (octet_length(headers::text) <= 1048576),
    constraint events_times check (
        least(created_at, available_at) >= '1970-01-01 00:00:00+00'
        and greatest(created_at, available_at) <= '9999-12-31 00:00:00+00'
    )
);
-- Vacuums early: rows live for moments, and dead ones would pile up until a fifth of a large table is dead.
alter table oncely.events set (autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_insert_scale_factor = 0.2);
comment on table oncely.events is
    'Events on their way to RabbitMQ; a row goes when the broker has confirmed it. Write them with oncely.emit.';
comment on column oncely.events.tenant is 'Whose event.';
comment on column oncely.events.id is
    'Random (version 7); says nothing about order. Travels in the header x-oncely-event.';
comment on column oncely.events.created_at is 'When it was written; travels as the property timestamp.';
comment on column oncely.events.available_at is
    'Not published before: the delay asked for, or the pause after a failure.';
comment on column oncely.events.ordering_number is
    'Its place within the ordering key, in the order of the commits; null without one. Gaps are events that were '
    'published or discarded.';
comment on column oncely.events.attempts is 'How often the broker refused or returned it. Outages do not count.';
comment on column oncely.events.state is
    'pending: to be published. parked: given up until an operator retries or discards it (oncely outbox).';
comment on column oncely.events.exchange is 'Where it is published to; empty for the default exchange.';
comment on column oncely.events.routing_key is 'Its routing key.';
comment on column oncely.events.ordering_key is
    'Events of one key (and tenant) are published one after another, in the order of ordering_number. Null: no '
    'order.';
comment on column oncely.events.message_id is
    'The consumer''s idempotency key: the same whenever the event is published. Null: the id.';
comment on column oncely.events.content_type is 'The property content_type.';
comment on column oncely.events.type is 'The property type.';
comment on column oncely.events.correlation_id is 'The property correlation_id.';
comment on column oncely.events.reply_to is 'The property reply_to.';
comment on column oncely.events.app_id is 'The property app_id.';
comment on column oncely.events.headers is 'The headers: texts, whole numbers, booleans and null.';
comment on column oncely.events.payload is 'The body, byte for byte.';
comment on column oncely.events.reason is
    'Why it was not published the last time, a stable code: unroutable, requester_gone, exchange_missing, '
    'access_refused, nacked, precondition_failed, …';
comment on column oncely.events.last_error is 'The broker''s words, for people.';
comment on column oncely.events.reply is 'A handler''s response, for its requester (reply_to).';

create index events_due on oncely.events (available_at)
where state = 'pending' and ordering_key is null;
comment on index oncely.events_due is 'For the relay: events without an order.';
create unique index events_ordered on oncely.events (tenant, ordering_key, ordering_number)
where ordering_key is not null;
comment on index oncely.events_ordered is 'For the relay: the heads of the ordering keys, and what follows them.';
create index events_created_at on oncely.events (created_at);
comment on index oncely.events_created_at is 'For lists, and for the age of the oldest event.';

create table oncely.ordering_keys (
    tenant text collate "C" not null,
    ordering_key text collate "C" not null,
    last_number bigint not null,
    used_at timestamptz not null,
    constraint ordering_keys_pkey primary key (tenant, ordering_key),
    constraint ordering_keys_times check (
        least(used_at) >= '1970-01-01 00:00:00+00' and greatest(used_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.ordering_keys is
    'The last number given out within each ordering key. Who emits holds the row until commit, so that numbers '
    'follow the order of the commits. Collected when idle.';
comment on column oncely.ordering_keys.tenant is 'Whose key.';
comment on column oncely.ordering_keys.ordering_key is 'The key.';
comment on column oncely.ordering_keys.last_number is 'The number of the last event.';
comment on column oncely.ordering_keys.used_at is 'When it was given out.';

-- from functions/delete_events.sql
-- Deletes events for logins without a right to the table: with a right to delete, a login may lock all of it.
create or replace function oncely.delete_events(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.events as e
    using unnest(tenants, ids) as d (tenant, id)
    -- A parked event waits for an operator.
    where oncely.in_group(e.tenant, tenants) and e.tenant = d.tenant and e.id = d.id and e.state = 'pending';
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_events is
    'Deletes events that have arrived; none that is parked. Returns how many there were. For relays.';
revoke execute on function oncely.delete_events from public;

-- from functions/change_events.sql
create or replace function oncely.change_events(
    verb text, at timestamptz, tenants text[], ids uuid[], state text, filter jsonb, reason text, os_user text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    free_tenants text[];
    free_ids uuid[];
begin
    if coalesce(change_events.verb, '') not in ('retry_events', 'discard_events') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: events are changed by retry_events and discard_events';
    end if;
    -- Skips events that a relay holds, because it is publishing them.
    select coalesce(array_agg(f.tenant), '{}'), coalesce(array_agg(f.id), '{}') into free_tenants, free_ids
    from (
        select e.tenant, e.id
        from unnest(change_events.tenants, change_events.ids) as m (tenant, id)
        join oncely.events as e on e.tenant = m.tenant and e.id = m.id
        where oncely.in_group(e.tenant, change_events.tenants)
            and (change_events.state is null or e.state = change_events.state)
        for update of e skip locked
    ) as f;
    if change_events.verb = 'discard_events' then
        delete from oncely.events as e
        using unnest(free_tenants, free_ids) as f (tenant, id)
        where oncely.in_group(e.tenant, free_tenants) and e.tenant = f.tenant and e.id = f.id;
    else
        update oncely.events as e
        set state = 'pending', attempts = 0, available_at = change_events.at
        from unnest(free_tenants, free_ids) as f (tenant, id)
        where oncely.in_group(e.tenant, free_tenants) and e.tenant = f.tenant and e.id = f.id;
    end if;
    perform oncely.record_action(
        case when free_tenants[1] = all (free_tenants) then coalesce(free_tenants[1], '') else '' end,
        change_events.verb, change_events.filter, cardinality(free_ids), change_events.reason, change_events.os_user
    );
    return cardinality(free_ids);
end
$$;
comment on function oncely.change_events is
    'Makes events due as if they had never failed (retry_events), or deletes them (discard_events), and records it in '
    'operator_actions. Leaves alone what a relay holds. Returns how many it was done to. For operators.';
revoke execute on function oncely.change_events from public;

-- from functions/collect_ordering_keys.sql
create or replace function oncely.collect_ordering_keys(
    used_before timestamptz, after_tenant text, after_key text, most bigint, unit text default '',
    out last_tenant text, out last_key text, out gone bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenants text[];
    keys text[];
begin
    execute format(
        $lock$
        select array_agg(i.tenant order by i.tenant, i.ordering_key),
            array_agg(i.ordering_key order by i.tenant, i.ordering_key)
        from (
            select k.tenant, k.ordering_key
            from %s as k
            where k.used_at < $1 and (k.tenant, k.ordering_key) > ($2, $3)
            order by k.tenant, k.ordering_key
            limit $4
            for update skip locked
        ) as i
        $lock$,
        oncely.unit_table(unit, 'ordering_keys')
    ) using used_before, after_tenant, after_key, most into tenants, keys;
    last_tenant := tenants[cardinality(tenants)];
    last_key := keys[cardinality(keys)];
    -- A separate statement, with a snapshot taken under the locks: a transaction that emitted under one of these keys
    -- held its row until the commit, so its event is visible here. In one statement it would not be, and numbering
    -- would restart behind it.
    delete from oncely.ordering_keys as k
    using unnest(tenants, keys) as i (tenant, ordering_key)
    where oncely.in_group(k.tenant, tenants) and k.tenant = i.tenant and k.ordering_key = i.ordering_key
        and not exists (
            select from oncely.events as e
            where oncely.in_group(e.tenant, tenants) and e.tenant = k.tenant and e.ordering_key = k.ordering_key
        );
    get diagnostics gone = row_count;
end
$$;
comment on function oncely.collect_ordering_keys is
    'Deletes a bounded batch of a unit''s idle ordering keys without events, behind a key, and returns the last one '
    'looked at.';
revoke execute on function oncely.collect_ordering_keys from public;

-- from functions/list_events.sql
-- Lists events (see oncely.visible_tenants), without messages, which an auditor may not read.
create or replace function oncely.list_events(
    of_tenant text default null, of_exchange text default null, of_routing_key text default null,
    of_ordering_key text default null, of_reason text default null, until timestamptz default null,
    of_ids uuid[] default null, of_state text default null, behind_id uuid default null, most bigint default 100
)
returns table (
    tenant text, id uuid, created_at timestamptz, available_at timestamptz, attempts integer, state text,
    reply boolean, exchange text, routing_key text, ordering_key text, ordering_number bigint, message_id text,
    type text, correlation_id text, reason text, last_error text
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
    if behind_id is null then
        return query
        select e.tenant, e.id, oncely.bounded(e.created_at), oncely.bounded(e.available_at), e.attempts, e.state,
            e.reply, e.exchange, e.routing_key, e.ordering_key, e.ordering_number, e.message_id, e.type,
            e.correlation_id, e.reason, e.last_error
        from oncely.events as e
        where (visible is null or e.tenant = any (visible))
            and (of_tenant is null or e.tenant = of_tenant)
            and (of_exchange is null or e.exchange = of_exchange)
            and (of_routing_key is null or e.routing_key = of_routing_key)
            and (of_ordering_key is null or e.ordering_key = of_ordering_key)
            and (of_reason is null or e.reason = of_reason)
            and (until is null or e.created_at < until)
            and (of_ids is null or e.id = any (of_ids))
            and (of_state is null or e.state = of_state)
        order by e.created_at, e.id
        limit most;
    else
        return query
        select e.tenant, e.id, oncely.bounded(e.created_at), oncely.bounded(e.available_at), e.attempts, e.state,
            e.reply, e.exchange, e.routing_key, e.ordering_key, e.ordering_number, e.message_id, e.type,
            e.correlation_id, e.reason, e.last_error
        from oncely.events as e
        where (visible is null or e.tenant = any (visible)) and e.tenant = of_tenant and e.id > behind_id
        order by e.id
        limit most;
    end if;
end
$$;
comment on function oncely.list_events is
    'Events without their messages, the oldest first; with behind_id all of a tenant behind that one, by their ids. '
    'For operators and auditors; a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_events from public;

-- end of functions

-- Writes an event, for any client in any language: as a row in the caller's transaction, refused at once if no broker
-- would take it. Runs with its owner's rights, so that an application needs no right on the tables.
--
-- Each event belongs to a tenant; else all events without one would lie in one bucket, which can never be spread. The
-- tenant is the one that the call names; else that of the message that caused it; else that of the claim in this
-- transaction (oncely.claimed, set by oncely.claim: "=" and the tenant, or "*" for claims of several); else the setting
-- of the application's role or database: alter role shop set oncely.tenant = 'acme'.

-- from functions/check_room.sql
-- Checks the counts that relays take once a minute (oncely.count_letters), so that no emit waits for another one's
-- count: events written in between may exceed a limit. The limit stops a client that stores without bound, and is too
-- high for an application to reach while its broker is away for a day.
create or replace function oncely.check_room(tenant text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    full_of record;
begin
    if pg_has_role(session_user, current_user, 'member') then
        return;
    end if;
    select u.events, u.event_bytes, coalesce(l.events, c.tenant_events) as most,
        coalesce(l.event_bytes, c.tenant_event_bytes) as most_bytes
    into full_of
    from oncely.letter_usage as u
    cross join oncely.cell as c
    left join oncely.tenant_limits as l on l.tenant = u.tenant
    where u.tenant = check_room.tenant
        and (
            u.events >= coalesce(l.events, c.tenant_events)
            or u.event_bytes >= coalesce(l.event_bytes, c.tenant_event_bytes)
        );
    if found then
        raise exception using errcode = 'ONC22',
            message = format(
                'oncely: %s events of the tenant %L wait, with %s bytes; %s may, with %s bytes', full_of.events,
                check_room.tenant, full_of.event_bytes, full_of.most, full_of.most_bytes
            ),
            hint = format(
                'This event was not written. Emit again when relays have published some (oncely status), or have an '
                'operator allow more: oncely tenant limit %L --events %s --event-bytes %s',
                check_room.tenant, full_of.most * 2, full_of.most_bytes * 2
            );
    end if;
end
$$;
comment on function oncely.check_room is
    'Refuses (SQLSTATE ONC22) a client''s event where too many of its tenant wait. The schema''s owner is not refused.';
revoke execute on function oncely.check_room from public;

-- from functions/notify_relay.sql
-- Notifies a relay that waits for events. Nothing depends on a notification: without it, a relay finds the event at its
-- next read (relay.poll). At its commit a transaction with a notification takes a lock that the whole server shares,
-- waits for it no longer than lock_timeout, and keeps it until its commit is flushed. So none is sent unless a relay
-- waits, which holds the first advisory lock; nor while another transaction with one is under way, which holds the
-- second: after that one's commit the relay reads again and again. Any login may take these locks, and can thereby
-- delay events until the next read, or have one transaction at a time notify. No notification is sent where a commit
-- waits for a standby, or where transactions can be prepared, which PostgreSQL refuses after one, or when the server's
-- queue of notifications fills up, as its end fails commits.
create or replace function oncely.notify_relay() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One expression, which can't be interrupted between the two calls.
    if (case when pg_try_advisory_lock_shared(1332634476, 1) then pg_advisory_unlock_shared(1332634476, 1) end) is null
        and current_setting('max_prepared_transactions') = '0'
        and current_setting('synchronous_standby_names') = ''
        and pg_notification_queue_usage() < 0.5
        and pg_try_advisory_xact_lock(1332634476, 2)
    then
        perform pg_notify('oncely_events', '');
    end if;
end
$$;
comment on function oncely.notify_relay is
    'Notifies a relay that waits for events, when the transaction commits. Not for callers.';
revoke execute on function oncely.notify_relay from public;

-- from functions/add_event.sql
create or replace function oncely.add_event(
    exchange text, routing_key text, payload bytea, headers jsonb, content_type text, message_id text,
    ordering_key text, delay interval, type text, source text, correlation_id text, reply_to text, app_id text,
    tenant text, cause oncely.message
) returns uuid
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    at timestamptz := clock_timestamp();
    id uuid := oncely.uuid_v7(at);
    most bigint;
    size bigint;
    wrong text;
    number bigint;
    due timestamptz;
    claimed text;
begin
    tenant := coalesce(tenant, cause.tenant);
    if tenant is null then
        claimed := current_setting('oncely.claimed', true);
        if claimed = '*' then
            raise exception using errcode = 'ONC05',
                message = 'the tenant of an event is not clear: this transaction has claims of several',
                hint = 'Say which: tenant => …';
        end if;
        tenant := case
            when claimed <> '' then substr(claimed, 2)
            else coalesce(current_setting('oncely.tenant', true), '')
        end;
    end if;
    if tenant = '' then
        raise exception using errcode = 'ONC05', message = 'an event needs a tenant',
            hint = 'Say it: tenant => …, or cause => the message. Or set oncely.tenant for the role or the database.';
    end if;
    if exchange is null or routing_key is null or payload is null then
        raise exception using errcode = 'ONC05',
            message = 'an event needs an exchange, a routing key and a payload: one of them is null',
            hint = 'The default exchange is an empty text; JSON''s null is ''null''::jsonb.';
    end if;
    -- greatest ignores nulls.
    if greatest(
        octet_length(exchange), octet_length(routing_key), octet_length(message_id), octet_length(content_type),
        octet_length(type), octet_length(correlation_id), octet_length(reply_to), octet_length(app_id),
        octet_length(tenant), octet_length(ordering_key)
    ) > 255 then
        select format('the %s of an event has %s bytes; the limit is 255', v.name, octet_length(v.value)) into wrong
        from (values
            ('exchange', exchange), ('routing_key', routing_key), ('message_id', message_id),
            ('content_type', content_type),
            ('type', type), ('correlation_id', correlation_id), ('reply_to', reply_to), ('app_id', app_id),
            ('tenant', tenant), ('ordering_key', ordering_key)
        ) as v (name, value)
        where octet_length(v.value) > 255
        limit 1;
        raise exception using errcode = 'ONC04', message = wrong;
    end if;
    if reply_to = 'amq.rabbitmq.reply-to' then
        raise exception using errcode = 'ONC05',
            message = 'an event can''t have its answer sent to amq.rabbitmq.reply-to: that is the session of the '
                'publisher, which is the relay',
            hint = 'Name a queue.';
    end if;
    if message_id = '' or ordering_key = '' then
        raise exception using errcode = 'ONC05',
            message = 'the message_id and the ordering_key of an event must not be empty: leave them out';
    end if;
    -- Any session may set this, to lower the limit. No relay reads payloads over 16 MiB
    -- (crates/postgres/src/event_relay.rs).
    most := least(coalesce(nullif(current_setting('oncely.max_event_bytes', true), ''), '16777216')::bigint, 16777216);
    if octet_length(payload) > most then
        raise exception using errcode = 'ONC04',
            message = format('the payload of an event has %s bytes; the limit is %s', octet_length(payload), most),
            hint = 'Put large content where its consumer can fetch it.';
    end if;
    due := at;
    if delay is not null then
        -- Compares seconds: see oncely.checked_time.
        if extract(epoch from delay) not between 0 and extract(epoch from interval '366 days') then
            raise exception using errcode = 'ONC05',
                message = format('the delay of an event is negative or longer than 366 days: %s', delay);
        end if;
        due := at + make_interval(secs => extract(epoch from delay)::double precision);
    end if;
    -- Code that runs inside a worker is the operator's own. Checked here, because a function call costs more than the
    -- check.
    if pg_has_role(session_user, to_regrole('oncely_worker'), 'member') is not true then
        perform oncely.check_right('emit', exchange, tenant), oncely.check_room(tenant);
    end if;
    if delay is not null and ordering_key is not null then
        raise exception using errcode = 'ONC05',
            message = 'an event has either a delay or an ordering_key',
            hint = 'A delayed event would hold up all later ones of its key.';
    end if;
    -- Follows the AMQP binding of CloudEvents, binary mode.
    if source is not null then
        if coalesce(type, '') = '' or source = '' then
            raise exception using errcode = 'ONC05',
                message = 'an event with a source is a CloudEvent, and needs a source and a type that are not empty';
        end if;
        headers := coalesce(headers, '{}') || jsonb_build_object(
            'cloudEvents:specversion', '1.0',
            'cloudEvents:id', coalesce(message_id, id::text),
            'cloudEvents:source', source,
            'cloudEvents:type', type,
            'cloudEvents:time', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        );
    end if;
    -- Copies the W3C trace context of the delivery that caused the event, unless the caller sets one.
    if cause.headers ? 'traceparent' and not coalesce(headers ? 'traceparent', false) then
        headers := coalesce(headers, '{}')
            || jsonb_strip_nulls(jsonb_build_object(
                'traceparent', cause.headers -> 'traceparent', 'tracestate', cause.headers -> 'tracestate'
            ));
    end if;
    if jsonb_typeof(headers) <> 'object' then
        raise exception using errcode = 'ONC05',
            message = format('the headers of an event must be a JSON object, not %s', jsonb_typeof(headers));
    end if;
    if headers is not null then
        -- Counts as on the wire: name, type, length, text; a number takes 8 bytes.
        select
            sum(octet_length(h.key) + 2 + case jsonb_typeof(h.value)
                when 'string' then 4 + octet_length(h.value #>> '{}')
                else 8
            end),
            max(h.key) filter (where case jsonb_typeof(h.value)
                when 'number' then scale(h.value::numeric) > 0
                    or h.value::numeric not between -9223372036854775808 and 9223372036854775807
                when 'object' then true
                when 'array' then true
                -- RabbitMQ takes CC and BCC as lists of routing keys, and closes the channel on any other value.
                else h.key in ('CC', 'BCC')
            end or octet_length(h.key) not between 1 and 255),
            count(*)
        into size, wrong, number
        from jsonb_each(headers) as h;
        if wrong is not null then
            raise exception using errcode = 'ONC05',
                message = format(
                    'the header %s of an event can''t be sent: a header is a text, a whole number, a boolean or null, '
                    'with a name of 1 to 255 bytes other than CC and BCC',
                    left(wrong, 300)
                );
        end if;
        if size > 122880 then
            raise exception using errcode = 'ONC04',
                message = format('the headers of an event have %s bytes; the limit is 122880', size),
                hint = 'AMQP can''t split the headers of a message: they must fit into one frame.';
        end if;
        if number > 4096 then
            raise exception using errcode = 'ONC04',
                message = format('an event has %s headers; the limit is 4096', number);
        end if;
        number := null;
    end if;
    if ordering_key is not null then
        -- The row stays locked until the caller's commit: the next transaction with this key waits, and gets a higher
        -- number.
        insert into oncely.ordering_keys as k (tenant, ordering_key, last_number, used_at)
        values (tenant, ordering_key, 1, at)
        on conflict on constraint ordering_keys_pkey do update
        set last_number = k.last_number + 1, used_at = excluded.used_at
        returning k.last_number into number;
    end if;
    insert into oncely.events (
        tenant, id, created_at, available_at, exchange, routing_key, payload, headers, content_type, message_id,
        ordering_key, ordering_number, type, correlation_id, reply_to, app_id
    )
    values (
        tenant, id, at, due, exchange, routing_key, payload, headers, content_type, message_id,
        ordering_key, number, type, correlation_id, reply_to, app_id
    );
    if due <= at then
        perform oncely.notify_relay();
    end if;
    return id;
end
$$;
comment on function oncely.add_event is 'What the forms of oncely.emit have in common. Not for callers.';
revoke execute on function oncely.add_event from public;

-- from functions/emit.sql
-- Emits a text as it is. Literals, and values that a driver sends without a type, arrive here.
create or replace function oncely.emit(
    exchange text,
    routing_key text,
    payload text,
    headers jsonb default null,
    content_type text default null,
    message_id text default null,
    ordering_key text default null,
    delay interval default null,
    type text default null,
    source text default null,
    correlation_id text default null,
    reply_to text default null,
    app_id text default 'oncely',
    tenant text default null,
    cause oncely.message default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    -- Keeps the text. Literals, and values that a driver sends without a type, arrive here.
    if content_type is null then
        content_type := case
            when ltrim(payload, E' \t\r\n') ~ '^[[{]' and oncely.try_jsonb(convert_to(payload, 'UTF8')) is not null
                then 'application/json'
            else 'text/plain; charset=utf-8'
        end;
    end if;
    return oncely.add_event(
        exchange, routing_key, convert_to(payload, 'UTF8'), headers, content_type,
        message_id, ordering_key, delay, type, source, correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(
    text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) is
    'Emits an event with a text as its body, byte for byte (UTF-8). Its content type is JSON where the text is an '
    'object or an array. Published when the caller''s transaction has committed, and never otherwise; returns its '
    'id. ONC04: too large, ONC05: can''t be sent, ONC22: too many wait.';
revoke execute on function oncely.emit(
    text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) from public;

create or replace function oncely.emit(
    exchange text,
    routing_key text,
    payload jsonb,
    headers jsonb default null,
    content_type text default null,
    message_id text default null,
    ordering_key text default null,
    delay interval default null,
    type text default null,
    source text default null,
    correlation_id text default null,
    reply_to text default null,
    app_id text default 'oncely',
    tenant text default null,
    cause oncely.message default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return oncely.add_event(
        exchange, routing_key, convert_to(payload::text, 'UTF8'), headers, coalesce(content_type, 'application/json'),
        message_id, ordering_key, delay, type, source, correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(
    text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) is
    'Emits an event with a JSON body. Published when the caller''s transaction has committed, and never otherwise; '
    'returns its id. ONC04: too large, ONC05: can''t be sent, ONC22: too many wait.';
revoke execute on function oncely.emit(
    text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) from public;

create or replace function oncely.emit(
    exchange text,
    routing_key text,
    payload bytea,
    headers jsonb default null,
    content_type text default null,
    message_id text default null,
    ordering_key text default null,
    delay interval default null,
    type text default null,
    source text default null,
    correlation_id text default null,
    reply_to text default null,
    app_id text default 'oncely',
    tenant text default null,
    cause oncely.message default null
) returns uuid
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return oncely.add_event(
        exchange, routing_key, payload, headers, coalesce(content_type, 'application/octet-stream'),
        message_id, ordering_key, delay, type, source, correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(
    text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) is
    'Emits an event with these bytes as its body. Published when the caller''s transaction has committed, and never '
    'otherwise; returns its id. ONC04: too large, ONC05: can''t be sent, ONC22: too many wait.';
revoke execute on function oncely.emit(
    text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message
) from public;

-- from functions/write_replies.sql
-- Writes replies for workers, which can't insert into the table of events themselves.
create or replace function oncely.write_replies(
    consumer text, at timestamptz, tenants text[], keys text[], ids uuid[], reply_tos text[], message_ids text[],
    correlation_ids text[], headers jsonb[]
)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    written bigint;
begin
    -- As in oncely.emit: RabbitMQ takes CC and BCC as lists of routing keys.
    if exists (
        select from unnest(headers) as h (value)
        where jsonb_typeof(h.value) <> 'object' or h.value ?| array['CC', 'BCC']
    ) then
        raise exception using errcode = 'ONC05', message = 'the headers of a reply can''t be sent';
    end if;
    -- Renders a reply's body from the stored response, for the first run and for a duplicate alike: the same bytes. A
    -- response encrypted before replies were turned on is sent as null.
    insert into oncely.events (
        tenant, id, created_at, available_at, exchange, routing_key, reply, message_id, correlation_id, content_type,
        app_id, headers, payload
    )
    select r.tenant, r.id, write_replies.at, write_replies.at, '', r.reply_to, true, r.message_id, r.correlation_id,
        'application/json', 'oncely', r.headers,
        convert_to(coalesce(oncely.plain_json(i.response)::text, 'null'), 'UTF8')
    from unnest(tenants, keys, ids, reply_tos, message_ids, correlation_ids, headers)
        as r (tenant, key, id, reply_to, message_id, correlation_id, headers)
    join oncely.idempotency_keys as i
        on oncely.in_group(i.tenant, tenants) and i.tenant = r.tenant
          and i.consumer = write_replies.consumer and i.key = r.key;
    get diagnostics written = row_count;
    perform oncely.notify_relay();
    return written;
end
$$;
comment on function oncely.write_replies is
    'Writes the stored responses of keys as events for those who asked. For workers.';
revoke execute on function oncely.write_replies from public;

-- end of functions
