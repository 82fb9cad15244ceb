-- The one way to write an event, for any client in any language: a row in the caller's transaction, refused at once where no broker
-- would take it. Runs with its owner's rights, so that an application needs no right on the tables.

-- PostgreSQL 18 brings its own uuidv7(). Time first, so that new rows lie together.
create function oncely.uuid_v7(at timestamptz) returns uuid
language sql volatile parallel safe
as $$
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6
            ),
            52, 1), 53, 1),
        'hex')::uuid
$$;
comment on function oncely.uuid_v7(timestamptz) is 'A random uuid of version 7 for a time.';

create function oncely.add_event(
    exchange text, routing_key text, payload bytea, headers jsonb, content_type text, message_id text, ordering_key text,
    delay interval, type text, source text, correlation_id text, reply_to text, app_id text, tenant text, cause oncely.message
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
begin
    tenant := coalesce(tenant, cause.tenant, '');
    if exchange is null or routing_key is null or payload is null then
        raise exception using errcode = 'ONC05',
            message = 'an event needs an exchange, a routing key and a payload: one of them is null',
            hint = 'The default exchange is an empty text; JSON''s null is ''null''::jsonb.';
    end if;
    -- Nulls don't count.
    if greatest(
        octet_length(exchange), octet_length(routing_key), octet_length(message_id), octet_length(content_type), octet_length(type),
        octet_length(correlation_id), octet_length(reply_to), octet_length(app_id), octet_length(tenant), octet_length(ordering_key)
    ) > 255 then
        select format('the %s of an event has %s bytes; the limit is 255', v.name, octet_length(v.value)) into wrong
        from (values
            ('exchange', exchange), ('routing_key', routing_key), ('message_id', message_id), ('content_type', content_type),
            ('type', type), ('correlation_id', correlation_id), ('reply_to', reply_to), ('app_id', app_id),
            ('tenant', tenant), ('ordering_key', ordering_key)
        ) as v (name, value)
        where octet_length(v.value) > 255
        limit 1;
        raise exception using errcode = 'ONC04', message = wrong;
    end if;
    if message_id = '' or ordering_key = '' then
        raise exception using errcode = 'ONC05', message = 'the message_id and the ordering_key of an event must not be empty: leave them out';
    end if;
    most := coalesce(nullif(current_setting('oncely.max_event_bytes', true), ''), '16777216')::bigint;
    if octet_length(payload) > most then
        raise exception using errcode = 'ONC04',
            message = format('the payload of an event has %s bytes; the limit is %s', octet_length(payload), most),
            hint = 'Put large content where its consumer can fetch it, or set oncely.max_event_bytes (and RabbitMQ''s max_message_size).';
    end if;
    if delay < interval '0' then
        raise exception using errcode = 'ONC05', message = format('the delay of an event is negative: %s', delay);
    end if;
    if delay is not null and ordering_key is not null then
        raise exception using errcode = 'ONC05',
            message = 'an event has either a delay or an ordering_key',
            hint = 'A delayed event would hold up all later ones of its key.';
    end if;
    -- CloudEvents, AMQP binding, binary mode.
    if source is not null then
        if coalesce(type, '') = '' or source = '' then
            raise exception using errcode = 'ONC05', message = 'an event with a source is a CloudEvent, and needs a source and a type that are not empty';
        end if;
        headers := coalesce(headers, '{}') || jsonb_build_object(
            'cloudEvents:specversion', '1.0',
            'cloudEvents:id', coalesce(message_id, id::text),
            'cloudEvents:source', source,
            'cloudEvents:type', type,
            'cloudEvents:time', to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')
        );
    end if;
    -- W3C trace context: what the delivery that caused it carries, unless the caller says otherwise.
    if cause.headers ? 'traceparent' and not coalesce(headers ? 'traceparent', false) then
        headers := coalesce(headers, '{}')
            || jsonb_strip_nulls(jsonb_build_object('traceparent', cause.headers -> 'traceparent', 'tracestate', cause.headers -> 'tracestate'));
    end if;
    if jsonb_typeof(headers) <> 'object' then
        raise exception using errcode = 'ONC05', message = format('the headers of an event must be a JSON object, not %s', jsonb_typeof(headers));
    end if;
    if headers is not null then
        -- As on the wire: name, type, length, text; a number takes 8 bytes.
        select
            sum(octet_length(h.key) + 2 + case jsonb_typeof(h.value) when 'string' then 4 + octet_length(h.value #>> '{}') else 8 end),
            max(h.key) filter (where case jsonb_typeof(h.value)
                when 'number' then scale(h.value::numeric) > 0 or h.value::numeric not between -9223372036854775808 and 9223372036854775807
                when 'object' then true
                when 'array' then true
                else false
            end or octet_length(h.key) not between 1 and 255)
        into size, wrong
        from jsonb_each(headers) as h;
        if wrong is not null then
            raise exception using errcode = 'ONC05',
                message = format('the header %s of an event can''t be sent: a header is a text, a whole number, a boolean or null, with a name of 1 to 255 bytes', left(wrong, 300));
        end if;
        if size > 122880 then
            raise exception using errcode = 'ONC04',
                message = format('the headers of an event have %s bytes; the limit is 122880', size),
                hint = 'AMQP can''t split the headers of a message: they must fit into one frame.';
        end if;
    end if;
    if ordering_key is not null then
        -- The row stays locked until the caller's commit: who comes next under this key waits, and gets a higher number.
        insert into oncely.ordering_keys as k (tenant, ordering_key, last_number, used_at)
        values (tenant, ordering_key, 1, at)
        on conflict on constraint ordering_keys_pkey do update set last_number = k.last_number + 1, used_at = excluded.used_at
        returning k.last_number into number;
    end if;
    insert into oncely.events (
        tenant, id, created_at, available_at, exchange, routing_key, payload, headers, content_type, message_id, ordering_key,
        ordering_number, type, correlation_id, reply_to, app_id
    )
    values (
        tenant, id, at, at + coalesce(delay, interval '0'), exchange, routing_key, payload, headers, content_type, message_id, ordering_key,
        number, type, correlation_id, reply_to, app_id
    );
    return id;
end
$$;
comment on function oncely.add_event(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) is 'What the forms of oncely.emit have in common. Not for callers.';
revoke execute on function oncely.add_event(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) from public;
revoke execute on function oncely.uuid_v7(timestamptz) from public;

create function oncely.emit(
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
    -- As it is. What was written as a literal, or sent by a driver without a type, arrives here.
    if content_type is null then
        content_type := case
            when ltrim(payload, E' \t\r\n') ~ '^[\[{]' and oncely.try_jsonb(convert_to(payload, 'UTF8')) is not null then 'application/json'
            else 'text/plain; charset=utf-8'
        end;
    end if;
    return oncely.add_event(
        exchange, routing_key, convert_to(payload, 'UTF8'), headers, content_type, message_id, ordering_key, delay, type, source,
        correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) is 'Emits an event with a text as its body, byte for byte (UTF-8). Its content type is JSON where the text is an object or an array. Published when the caller''s transaction has committed, and never otherwise; returns its id. ONC04: too large, ONC05: can''t be sent.';
revoke execute on function oncely.emit(text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) from public;

create function oncely.emit(
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
        exchange, routing_key, convert_to(payload::text, 'UTF8'), headers, coalesce(content_type, 'application/json'), message_id, ordering_key, delay, type, source,
        correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) is 'Emits an event with a JSON body. Published when the caller''s transaction has committed, and never otherwise; returns its id. ONC04: too large, ONC05: can''t be sent.';
revoke execute on function oncely.emit(text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) from public;

create function oncely.emit(
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
        exchange, routing_key, payload, headers, coalesce(content_type, 'application/octet-stream'), message_id, ordering_key, delay, type, source,
        correlation_id, reply_to, app_id, tenant, cause
    );
end
$$;
comment on function oncely.emit(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) is 'Emits an event with these bytes as its body. Published when the caller''s transaction has committed, and never otherwise; returns its id. ONC04: too large, ONC05: can''t be sent.';
revoke execute on function oncely.emit(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) from public;

do $$
declare
    role text;
begin
    begin
        -- For applications: may emit, and nothing else.
        create role oncely_emitter nologin;
    exception
        when duplicate_object or unique_violation then
            null;
        when insufficient_privilege then
            raise notice 'role oncely_emitter not created: the migrating user may not create roles';
    end;
    for role in select rolname from pg_roles where rolname in ('oncely_emitter', 'oncely_worker') loop
        execute format('grant usage on schema oncely to %I', role);
        execute format('grant execute on function oncely.emit(text, text, text, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message), oncely.emit(text, text, jsonb, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message), oncely.emit(text, text, bytea, jsonb, text, text, text, interval, text, text, text, text, text, text, oncely.message) to %I', role);
    end loop;
end
$$;
