set local search_path = pg_catalog, pg_temp;

-- Events on their way to RabbitMQ, written in the transaction that decided them. A table of its own beside the queue of
-- mirror records: it has other columns, other life times, and must not hold back the garbage collection of keys.
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
    -- AMQP's short strings. A null passes.
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
    -- Far more than a frame holds. As it is written it is not compressed.
    constraint events_headers_size check (pg_column_size(headers) <= 1048576),
    constraint events_times check (
        least(created_at, available_at) >= '1970-01-01 00:00:00+00'
        and greatest(created_at, available_at) <= '9999-12-31 00:00:00+00'
    )
);
-- Rows live for moments: without this the dead ones would pile up until a fifth of a large table is dead.
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
    'pending: to be published. parked: given up until somebody retries or discards it (oncely outbox).';
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
comment on column oncely.events.reply is 'A handler''s response, for whoever asked for it (reply_to).';

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

-- Who deletes has functions, and no right to the tables: with one to delete a login may lock all of them.
create function oncely.delete_events(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.events as e
    using unnest(tenants, ids) as d (tenant, id)
    -- What is parked waits for a person.
    where e.tenant = d.tenant and e.id = d.id and e.state = 'pending';
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_events is
    'Deletes events that have arrived; none that is parked. Returns how many there were. For relays.';
revoke execute on function oncely.delete_events from public;

create function oncely.change_events(
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
    -- What a relay holds is being published, and is left alone.
    select coalesce(array_agg(f.tenant), '{}'), coalesce(array_agg(f.id), '{}') into free_tenants, free_ids
    from (
        select e.tenant, e.id
        from unnest(change_events.tenants, change_events.ids) as m (tenant, id)
        join oncely.events as e on e.tenant = m.tenant and e.id = m.id
        where change_events.state is null or e.state = change_events.state
        for update of e skip locked
    ) as f;
    if change_events.verb = 'discard_events' then
        delete from oncely.events as e
        using unnest(free_tenants, free_ids) as f (tenant, id)
        where e.tenant = f.tenant and e.id = f.id;
    else
        update oncely.events as e
        set state = 'pending', attempts = 0, available_at = change_events.at
        from unnest(free_tenants, free_ids) as f (tenant, id)
        where e.tenant = f.tenant and e.id = f.id;
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

create function oncely.collect_ordering_keys(
    used_before timestamptz, after_tenant text, after_key text, most bigint,
    out last_tenant text, out last_key text, out gone bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenants text[];
    keys text[];
begin
    select array_agg(i.tenant order by i.tenant, i.ordering_key),
        array_agg(i.ordering_key order by i.tenant, i.ordering_key)
    into tenants, keys
    from (
        select k.tenant, k.ordering_key
        from oncely.ordering_keys as k
        where k.used_at < used_before and (k.tenant, k.ordering_key) > (after_tenant, after_key)
        order by k.tenant, k.ordering_key
        limit most
        for update skip locked
    ) as i;
    last_tenant := tenants[cardinality(tenants)];
    last_key := keys[cardinality(keys)];
    -- A statement of its own, whose snapshot is taken under the locks: a transaction that emitted under one of these
    -- keys held its row until the commit, so that event is seen here. In one statement it would not be, and numbers
    -- would begin again behind it.
    delete from oncely.ordering_keys as k
    using unnest(tenants, keys) as i (tenant, ordering_key)
    where k.tenant = i.tenant and k.ordering_key = i.ordering_key
        and not exists (
            select from oncely.events as e where e.tenant = k.tenant and e.ordering_key = k.ordering_key
        );
    get diagnostics gone = row_count;
end
$$;
comment on function oncely.collect_ordering_keys is
    'Deletes a bounded batch of idle ordering keys without events, behind a key, and returns the last one looked at.';
revoke execute on function oncely.collect_ordering_keys from public;

-- What lists events (see oncely.visible_tenants). Not the message itself: an auditor may not read that.
create function oncely.list_events(
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
-- So that a filter that is null costs nothing, and an index serves the others.
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
