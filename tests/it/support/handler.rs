//! A handler that does what the payload says, and leaves a trace for each time it ran.

/// The schema `app`: `app.effects` counts committed runs (nothing stops a second one), `app.handle` and `app.handle_batch`
/// are handlers.
pub(crate) const HANDLER: &str = r"
create schema app;
create table app.effects (
    tenant text not null, consumer text not null, key text not null, attempt integer, payload jsonb, body bytea,
    routing_key text, user_id text, headers jsonb
);
-- A second effect of one number is found out only at COMMIT.
create table app.numbers (number text, unique (number) deferrable initially deferred);

create function app.handle(message oncely.message) returns jsonb language plpgsql as $$
begin
    insert into app.effects values (message.tenant, message.consumer, message.key, message.attempt, message.payload,
        message.body, message.routing_key, message.user_id, message.headers);
    case message.payload ->> 'do'
        when 'fail' then raise exception 'boom';
        when 'fail_once' then
            if message.attempt = 1 then raise exception 'boom'; end if;
        when 'reject' then perform oncely.reject('no such account', 'account 7');
        when 'refuse' then perform oncely.refuse('sold out');
        when 'divide' then perform 1 / 0;
        when 'missing_table' then execute 'insert into app.not_there values (1)';
        -- Blocks until whoever holds this lock lets go: a handler that is in the middle of its work.
        when 'wait' then
            -- Not as a batch waits for rows: for the time that the work takes.
            perform set_config('lock_timeout', coalesce(message.payload ->> 'for', '5s'), true);
            perform pg_advisory_xact_lock(4711);
        when 'wait_number' then
            perform set_config('lock_timeout', '5s', true);
            perform pg_advisory_xact_lock(4711);
            insert into app.numbers values (message.payload ->> 'number');
        when 'number' then insert into app.numbers values (message.payload ->> 'number');
        else null;
    end case;
    return jsonb_build_object('done', message.key);
end
$$;

create function app.handle_batch(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
declare
    message oncely.message;
begin
    foreach message in array messages loop
        return next (message.seq, app.handle(message))::oncely.result;
    end loop;
end
$$;

-- Not a handler: returns nothing.
create function app.mute(messages oncely.message[]) returns void language sql as 'select';

-- Forgets every message whose payload says so.
create function app.forgetful(messages oncely.message[]) returns setof oncely.result language sql as $$
    select m.seq, null::jsonb from unnest(messages) as m where m.payload ->> 'do' is distinct from 'forget'
$$;

-- Do what app.handle does, and return nothing unless they are asked to.
create function app.quiet(message oncely.message) returns jsonb language plpgsql as $$
declare
    answer jsonb := app.handle(message);
begin
    return case when message.payload ->> 'do' = 'answer' then answer end;
end
$$;
create function app.quiet_batch(messages oncely.message[]) returns setof oncely.result language plpgsql as $$
begin
    return query select m.seq, app.quiet(m) from unnest(messages) as m where m.payload ->> 'do' is distinct from 'forget';
end
$$;
";
