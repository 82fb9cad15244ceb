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
