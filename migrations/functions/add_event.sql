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
