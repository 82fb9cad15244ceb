set local search_path = pg_catalog, pg_temp;

-- How a message reaches a handler that is a SQL function, so that a worker needs no Rust from its user, and what a
-- handler may say of it. The types are an interface: functions of users take them.
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
comment on column oncely.message.payload is 'The body as jsonb; null where it is not JSON that PostgreSQL can hold.';
comment on column oncely.message.body is 'The body, byte for byte.';
comment on column oncely.message.headers is 'The AMQP headers; byte strings that are not UTF-8 are left out.';
comment on column oncely.message.type is 'The publisher''s type property.';

create type oncely.result as (seq integer, response jsonb);
comment on type oncely.result is 'One row of what a handler in the batch form returns: exactly one per message.';

create function oncely.reject(message text, detail text default null) returns void
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

-- A business "no" (sold out, account closed) is no failure: nothing is to be mended, and nobody requeues it. It is
-- recorded like an effect, with its answer, and makes no dead letter.
create function oncely.refuse(reason text) returns void
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
