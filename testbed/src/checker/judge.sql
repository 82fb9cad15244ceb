-- The judge's books. No unique constraint would stop a second effect: doubling must show, not fail. The sum in
-- judge.effects catches it, judge.log says who did it.
create schema judge;

create table judge.effects (
    tenant text collate "C" not null,
    key text collate "C" not null,
    n bigint not null
);
create index effects_key on judge.effects (tenant, key);

create table judge.log (
    tenant text collate "C" not null,
    key text collate "C" not null,
    attempt integer not null,
    xid xid8 not null default pg_current_xact_id(),
    digest text collate "C" not null,
    application text not null default current_setting('application_name')
);
create index log_key on judge.log (tenant, key);

-- A second row of one number is found out only at COMMIT, which waits for the first one's end.
create table judge.late (
    number integer not null,
    unique (number) deferrable initially deferred
);

-- What was told the world, by whom it concerns: written in the transaction that emits it.
create table judge.emitted (
    id text collate "C" not null,
    tenant text collate "C" not null,
    ordering_key text collate "C",
    number bigint,
    digest text collate "C" not null
);

create table judge.streams (
    tenant text collate "C" not null,
    ordering_key text collate "C" not null,
    last bigint not null,
    primary key (tenant, ordering_key)
);

-- Emits an event and writes it down. Our number is taken after the product's: only whoever holds the ordering key until his
-- commit gets the same place in both. $3: another routing key.
create function judge.tell(told_by text, stream text, way text default null) returns text
language plpgsql
as $$
declare
    id text := gen_random_uuid();
    body jsonb := jsonb_build_object('event', id, 'by', told_by);
    number bigint;
begin
    if stream is null then
        id := oncely.emit('judge.events', coalesce(way, 'free'), body, tenant => told_by);
    else
        perform oncely.emit(
            'judge.events', coalesce(way, 'ordered'), body, message_id => id, ordering_key => stream, tenant => told_by
        );
        insert into judge.streams as s (tenant, ordering_key, last)
        values (told_by, stream, 1)
        on conflict (tenant, ordering_key) do update set last = s.last + 1
        returning last into number;
    end if;
    insert into judge.emitted (id, tenant, ordering_key, number, digest)
    values (id, told_by, stream, number, encode(sha256(convert_to(body::text, 'UTF8')), 'hex'));
    return id;
end
$$;

create function judge.take(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    update judge.effects set n = n + 1 where tenant = message.tenant and key = message.key;
    if not found then
        insert into judge.effects (tenant, key, n) values (message.tenant, message.key, 1);
    end if;
    insert into judge.log (tenant, key, attempt, digest)
    values (message.tenant, message.key, message.attempt, encode(sha256(message.body), 'hex'));
    -- Some say nothing, some one thing, some two; those who fail below say all in vain. One ordering key in a session, so that a
    -- batch waits for one other at the most; sessions that share it wait for each other.
    if hashtext(message.key) & 3 > 1 then
        perform judge.tell(message.tenant, null);
    end if;
    if hashtext(message.key) & 1 = 1 then
        perform judge.tell('handler', 'session-' || pg_backend_pid() % 8);
    end if;
    case message.payload ->> 'do'
        when 'slow' then perform pg_sleep(0.2);
        when 'fail' then raise exception 'always';
        when 'fail_once' then
            if message.attempt = 1 then raise exception 'once'; end if;
        when 'reject' then perform oncely.reject('on purpose');
        when 'divide' then perform 1 / 0;
        when 'gate' then perform pg_advisory_xact_lock(4711);
        when 'second_gate' then perform pg_advisory_xact_lock(4712);
        when 'late' then insert into judge.late values (7);
        else null;
    end case;
    return jsonb_build_object('done', message.key);
end
$$;

create function judge.take_all(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
declare
    message oncely.message;
begin
    foreach message in array messages loop
        return next (message.seq, judge.take(message))::oncely.result;
    end loop;
end
$$;

grant usage on schema judge to oncely_worker, oncely_emitter;
grant select, insert, update on judge.effects, judge.log, judge.late to oncely_worker;
grant insert on judge.emitted to oncely_worker, oncely_emitter;
grant select, insert, update on judge.streams to oncely_worker, oncely_emitter;
grant execute on function judge.tell(text, text, text) to oncely_worker, oncely_emitter;
grant execute on function judge.take(oncely.message), judge.take_all(oncely.message[]) to oncely_worker;
