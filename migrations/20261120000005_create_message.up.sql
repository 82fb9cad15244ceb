-- How a message reaches a handler that is a SQL function, so that a worker needs no Rust from its user.
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
comment on column oncely.message.seq is 'Number within the batch, from 1; the batch form returns it with each response.';
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
as $$
begin
    raise exception using errcode = 'ONC01', message = message, detail = coalesce(detail, '');
end
$$;
comment on function oncely.reject(text, text) is 'For handlers: this message can never succeed. Rolls back its effect and dead-letters it as handler_rejected (SQLSTATE ONC01).';

-- The quoted name of a handler, found by name and argument type; undefined_function (42883) where there is none.
create function oncely.handler_name(handler text, batch boolean) returns text
language sql stable
as $$
    select format('%I.%I', n.nspname, p.proname)
    from pg_proc as p
    join pg_namespace as n on n.oid = p.pronamespace
    where p.oid = (handler || case when batch then '(oncely.message[])' else '(oncely.message)' end)::regprocedure
$$;
comment on function oncely.handler_name(text, boolean) is 'Resolves a configured handler to a quoted name, so that no identifier is ever pasted.';

-- A body as jsonb, or null where PostgreSQL can't hold it: NUL escapes, lone surrogates, huge numbers, deep nesting.
create function oncely.try_jsonb(body bytea) returns jsonb
language plpgsql immutable
as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception
    when data_exception or program_limit_exceeded then
        return null;
end
$$;
comment on function oncely.try_jsonb(bytea) is 'The body as jsonb, or null where it is not JSON that PostgreSQL can hold.';

create function oncely.handle_all(handler text, batch boolean, messages oncely.message[])
returns table (seq integer, response jsonb)
language plpgsql
as $$
begin
    if batch then
        return query execute format('select r.seq, r.response from %s($1) as r (seq, response)', oncely.handler_name(handler, batch))
            using messages;
    else
        return query execute format('select m.seq, %s(m) from unnest($1) as m', oncely.handler_name(handler, batch))
            using messages;
    end if;
end
$$;
comment on function oncely.handle_all(text, boolean, oncely.message[]) is 'Runs the handler on all messages; the first error ends the statement.';

-- Each message in a subtransaction of its own: one that fails takes back its own effect and leaves its neighbours theirs.
-- A cancelled statement (statement_timeout) is not caught: "others" leaves query_canceled out.
create function oncely.handle_each(handler text, batch boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
#variable_conflict use_variable
declare
    message oncely.message;
    answers integer;
    call text := case
        when batch then format('select r.seq, r.response, count(*) over () from %s(array[$1]) as r (seq, response)', oncely.handler_name(handler, batch))
        else format('select $1.seq, %s($1), 1', oncely.handler_name(handler, batch))
    end;
    answered integer;
    detail text;
begin
    foreach message in array messages loop
        seq := message.seq;
        response := null;
        error_code := null;
        error_message := null;
        begin
            if needs_json and message.payload is null then
                raise exception using errcode = 'ONC02', message = 'the body is not JSON that PostgreSQL can hold';
            end if;
            answers := 0;
            execute call into answered, response, answers using message;
            if answers is distinct from 1 or answered is distinct from message.seq then
                raise exception using errcode = 'ONC03',
                    message = format('the batch handler returned %s rows for one message', coalesce(answers, 0));
            end if;
        exception
            when others then
                response := null;
                error_code := sqlstate;
                error_message := sqlerrm;
                -- What a handler says on purpose. Other errors' details hold data, such as the values of a violated key.
                if sqlstate = 'ONC01' then
                    get stacked diagnostics detail = pg_exception_detail;
                    error_message := concat_ws(': ', nullif(sqlerrm, ''), nullif(detail, ''));
                end if;
        end;
        return next;
    end loop;
end
$$;
comment on function oncely.handle_each(text, boolean, boolean, oncely.message[]) is 'Runs the handler on each message in a subtransaction of its own and returns errors as rows.';

-- One statement for both passes of a worker.
create function oncely.handle(handler text, batch boolean, each_alone boolean, needs_json boolean, messages oncely.message[])
returns table (seq integer, response jsonb, error_code text, error_message text)
language plpgsql
as $$
begin
    if each_alone then
        return query select e.* from oncely.handle_each(handler, batch, needs_json, messages) as e;
    else
        return query select a.seq, a.response, null::text, null::text from oncely.handle_all(handler, batch, messages) as a;
    end if;
end
$$;
comment on function oncely.handle(text, boolean, boolean, boolean, oncely.message[]) is 'Runs the handler on all messages, together or each in a subtransaction of its own.';
