-- The judge's books. No unique constraint would stop a second effect: doubling must show, not fail. The sum in
-- judge.effects catches it, judge.log says who did it.
create schema judge;

-- How many days have gone by, and how far all stored times have been moved: judge.age does both.
create table judge.calendar (days integer not null, moved interval not null);
insert into judge.calendar values (0, '0');
create function judge.today() returns integer language sql stable as 'select days from judge.calendar';

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
    application text not null default current_setting('application_name'),
    day integer not null default judge.today(),
    -- What it did beside its effect.
    beside text,
    -- Whose money it moved, and how much: a payment.
    account text collate "C",
    amount bigint
);
create index log_key on judge.log (tenant, key);

-- A second row of one number is found out only at COMMIT, which waits for the first one's end.
create table judge.late (
    number integer not null,
    unique (number) deferrable initially deferred
);

-- A row of it takes an hour of COMMIT.
create table judge.put_off (key text collate "C" not null);
create function judge.take_an_hour() returns trigger
language plpgsql
as $$
begin
    perform pg_sleep(3600);
    return null;
end
$$;
create constraint trigger put_off after insert on judge.put_off
deferrable initially deferred for each row execute function judge.take_an_hour();

-- Rows that many messages want, in any order.
create table judge.hot (number integer primary key, n bigint not null);
insert into judge.hot select number, 0 from generate_series(0, 15) as number;

-- What payments have moved: each balance must be the sum of what the log says.
create table judge.accounts (
    tenant text collate "C" not null,
    account text collate "C" not null,
    balance bigint not null,
    primary key (tenant, account)
);

create view judge.wrong_balances as
with entries as (
    select tenant, account, -amount as amount from judge.log where amount is not null
    union all
    select tenant, 'revenue', amount from judge.log where amount is not null
)
select tenant, account, a.balance, e.total
from (select tenant, account, sum(amount)::bigint as total from entries group by tenant, account) as e
full join judge.accounts as a using (tenant, account)
where a.balance is distinct from e.total;

-- Tenants that have a schema of their own, which may be missing for a while.
do $$
begin
    for number in 0..4 loop
        execute format('create schema branch_%s', number);
        execute format('create table branch_%s.books (key text collate "C" not null)', number);
        execute format('grant usage on schema branch_%s to oncely_worker', number);
        execute format('grant insert on branch_%s.books to oncely_worker', number);
    end loop;
end
$$;

-- Who ran what strangers have left lying about.
create table judge.trespasses (who text not null, what text not null);

-- The trail, noted before each change of the stored times, in the order in which it came about.
create table judge.trail (
    place bigint generated always as identity,
    tenant text collate "C" not null,
    key text collate "C" not null,
    outcome text not null,
    attempt integer not null,
    reason text,
    error_code text,
    -- When it was decided, with the days that had gone by: a clock that is set back later does not change it.
    at numeric not null,
    -- The same row of the product's trail has the same time here, however often the stored times have changed.
    stored_at numeric not null,
    unique (tenant, key, outcome, attempt, stored_at)
);

-- The same of what runs under leases (consumer charges), whatever became of it.
create table judge.lease_trail (
    place bigint generated always as identity,
    tenant text collate "C" not null,
    key text collate "C" not null,
    outcome text not null,
    attempt integer not null,
    reason text,
    detail text,
    worker text,
    at numeric not null,
    stored_at numeric not null,
    unique (tenant, key, outcome, attempt, stored_at)
);

-- What runs under leases write: a step in PostgreSQL, and the end of a run. Nothing is unique, as above.
create table judge.reserved (tenant text collate "C" not null, key text collate "C" not null, token bigint not null);
create table judge.finished (tenant text collate "C" not null, key text collate "C" not null, token bigint not null);

-- What an observer beside them saw.
create table judge.sightings (
    tenant text collate "C" not null,
    key text collate "C" not null,
    reason text not null,
    stored_at numeric not null,
    unique (tenant, key, reason, stored_at)
);

-- Keys that were aged by themselves, and by how many days.
create table judge.aged (
    tenant text collate "C" not null,
    key text collate "C" not null,
    days bigint not null,
    primary key (tenant, key)
);

-- What an operator has thrown away.
create table judge.discarded (
    tenant text collate "C" not null,
    key text collate "C" not null,
    primary key (tenant, key)
);

-- What was answered with a no: the trail forgets it sooner.
create table judge.refused (
    tenant text collate "C" not null,
    key text collate "C" not null,
    primary key (tenant, key)
);

create function judge.note() returns void
language sql
set search_path = pg_catalog
as $$
    insert into judge.trail (tenant, key, outcome, attempt, reason, error_code, at, stored_at)
    select tenant, key, outcome, attempt, reason, error_code,
        extract(epoch from occurred_at) + days * 86400, extract(epoch from occurred_at + moved)
    from oncely.audit, judge.calendar
    where outcome in ('retried', 'dead_lettered') and consumer not in ('charges', 'proxied') and occurred_at > clock_timestamp() - interval '3 days'
    order by occurred_at
    on conflict do nothing;
    insert into judge.lease_trail (tenant, key, outcome, attempt, reason, detail, worker, at, stored_at)
    select tenant, key, outcome, attempt, reason, detail, worker,
        extract(epoch from occurred_at) + days * 86400, extract(epoch from occurred_at + moved)
    from oncely.audit, judge.calendar
    where consumer = 'charges' and occurred_at > clock_timestamp() - interval '3 days'
    order by occurred_at
    on conflict do nothing;
    insert into judge.sightings (tenant, key, reason, stored_at)
    select tenant, key, coalesce(reason, 'first'), extract(epoch from occurred_at + moved)
    from oncely.audit, judge.calendar
    where consumer = 'charges.observe' and outcome = 'observed' and occurred_at > clock_timestamp() - interval '3 days'
    on conflict do nothing;
    insert into judge.refused
    select tenant, key from oncely.audit
    where outcome = 'refused' and consumer not in ('charges', 'proxied') and occurred_at > clock_timestamp() - interval '3 days'
    on conflict do nothing;
    insert into judge.discarded select tenant, key from oncely.dead_letters where state = 'discarded' on conflict do nothing;
$$;

-- Lets time go by: all that is stored is older at once. A negative time is a clock that was set back.
create function judge.age(by interval) returns void
language plpgsql
set search_path = pg_catalog
as $$
declare
    one record;
begin
    -- Who has a turn or requeues holds that row first, who decides about a key holds the key's, who emits an event in an order holds the
    -- order's: behind these locks nobody is in the middle of anything.
    for one in
        select c.oid::regclass as name
        from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
        order by c.relname not in ('locks', 'turns'), c.relname <> 'idempotency_keys', c.relname <> 'ordering_keys', c.relname <> 'events',
            c.relname
    loop
        execute format('lock table %s in exclusive mode', one.name);
    end loop;
    perform judge.note();
    if by > interval '0' then
        -- Weeks gone by have had their partitions.
        perform oncely.make_audit_partitions(
            coalesce((select min(occurred_at) from oncely.audit), clock_timestamp()) - by, clock_timestamp()
        );
    end if;
    for one in
        -- What stands at the beginning of all times (the first seal of the trail) stays there. Where a time is part of
        -- what is unique, a row must not take another's place before that one has left it: those tables move far away,
        -- and from there to where they belong.
        select a.attrelid::regclass as name,
            string_agg(format('%1$I = case when %1$I > ''1971-01-01'' then %1$I - $1 else %1$I end', a.attname), ', ') as sets,
            case
                when c.relkind = 'r' and exists (
                    select from pg_index as i
                    join pg_attribute as u on u.attrelid = i.indrelid and u.attnum = any (i.indkey)
                    where i.indrelid = c.oid and i.indisunique and u.atttypid = 'timestamptz'::regtype
                )
                then interval '24000000 hours' else '0'
            end as far
        from pg_attribute as a
        join pg_class as c on c.oid = a.attrelid
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.atttypid = 'timestamptz'::regtype
        group by a.attrelid, c.oid, c.relkind
    loop
        if one.far > interval '0' then
            execute format('update %s set %s', one.name, one.sets) using -one.far;
        end if;
        execute format('update %s set %s', one.name, one.sets) using by + one.far;
    end loop;
    for one in
        -- Spans of times move as a whole.
        select a.attrelid::regclass as name, a.attname as attribute
        from pg_attribute as a
        join pg_class as c on c.oid = a.attrelid
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not a.attisdropped
          and a.atttypid = 'tstzmultirange'::regtype
    loop
        execute format(
            'update %1$s set %2$I = (select range_agg(tstzrange(lower(r) - $1, upper(r) - $1)) from unnest(%2$I) as r) '
            'where not isempty(%2$I)', one.name, one.attribute
        ) using by;
    end loop;
    if to_regclass('oncely.audit_seals') is not null then
        perform judge.seal_again();
    end if;
    update judge.calendar set days = days + extract(days from by)::integer, moved = moved + by;
end
$$;

-- Lets an eighth of what has ended grow older by itself, each key once; the others stay as they are.
create function judge.age_apart(eighth integer, by_days integer) returns void
language plpgsql
set search_path = pg_catalog
as $$
declare
    one record;
begin
    create temp table aging on commit drop as
    select i.tenant, i.consumer, i.key
    from oncely.idempotency_keys as i
    where i.consumer = 'faults' and i.status in ('COMPLETED', 'FAILED') and hashtext(i.key) & 7 = eighth
      and i.tenant not in ('returning', 'forgotten')
      and exists (select from judge.log as l where l.tenant = i.tenant and l.key = i.key)
      and not exists (select from judge.aged as a where a.tenant = i.tenant and a.key = i.key)
    for update skip locked;
    for one in
        select a.attrelid::regclass as name,
            string_agg(format('%1$I = case when %1$I > ''1971-01-01'' then %1$I - $1 else %1$I end', a.attname), ', ') as sets
        from pg_attribute as a
        where a.attrelid in ('oncely.idempotency_keys'::regclass, 'oncely.dead_letters'::regclass)
          and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.atttypid = 'timestamptz'::regtype
        group by a.attrelid
    loop
        execute format(
            'update %s as t set %s from pg_temp.aging as a where (t.tenant, t.consumer, t.key) = (a.tenant, a.consumer, a.key)',
            one.name, one.sets
        ) using make_interval(days => by_days);
    end loop;
    insert into judge.aged (tenant, key, days) select tenant, key, by_days from pg_temp.aging;
end
$$;

-- The trail's seals hold the times of what they seal. As the owner of the schema, and only as that, we can make them anew.
create function judge.seal_again() returns void
language plpgsql
set search_path = pg_catalog
as $$
declare
    one record;
    last bytea := '';
    dropped timestamptz := (select max(until_time) from oncely.audit_seals where kind = 'dropped');
begin
    for one in select place, kind, from_time, until_time from oncely.audit_seals order by place loop
        if one.kind = 'rows' and (dropped is null or one.until_time > dropped) then
            update oncely.audit_seals as s
            set (row_count, digest) = (select d.row_count, d.digest from oncely.audit_digest(one.from_time, one.until_time) as d)
            where s.place = one.place;
        end if;
        update oncely.audit_seals as s set previous = last where s.place = one.place;
        update oncely.audit_seals as s set hash = oncely.seal_hash(s) where s.place = one.place returning s.hash into last;
    end loop;
end
$$;

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

-- Emits an event and writes it down. Our number is taken after the product's: only whoever holds the ordering key until the
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
    insert into judge.log (tenant, key, attempt, digest, beside)
    values (
        message.tenant, message.key, message.attempt, encode(sha256(message.body), 'hex'), message.payload -> 'beside' ->> 'what'
    );
    -- Some say nothing, some one thing, some two; those who fail below say all in vain. One ordering key in a session, so that a
    -- batch waits for one other at the most; sessions that share it wait for each other.
    if hashtext(message.key) & 3 > 1 then
        perform judge.tell(message.tenant, null);
    end if;
    if hashtext(message.key) & 1 = 1 then
        perform judge.tell('handler', 'session-' || pg_backend_pid() % 8);
    end if;
    -- What does not commute: beside its effect a message does something that its neighbours meet.
    case message.payload -> 'beside' ->> 'what'
        when 'hot' then
            update judge.hot set n = n + 1 where number = (message.payload -> 'beside' ->> 'first')::integer;
            update judge.hot set n = n + 1 where number = (message.payload -> 'beside' ->> 'second')::integer;
        when 'stream' then
            perform judge.tell('handler', 'stream-' || (message.payload -> 'beside' ->> 'first'));
        when 'temporary' then
            create temp table judge_scratch on commit drop as select message.key;
        when 'deferred' then
            -- At any moment before COMMIT there are two of them.
            insert into judge.late values (hashtext(message.key)), (hashtext(message.key));
            delete from judge.late where number = hashtext(message.key);
        else null;
    end case;
    case message.payload ->> 'do'
        when 'slow' then perform pg_sleep(0.2);
        when 'fail' then raise exception 'always';
        when 'fail_once' then
            if message.attempt = 1 then raise exception 'once'; end if;
        when 'reject' then perform oncely.reject('on purpose');
        when 'refuse' then perform oncely.refuse('sold out');
        when 'divide' then perform 1 / 0;
        when 'gate' then
            -- The gate stands for work that takes its time, and is no lock that somebody holds.
            perform set_config('lock_timeout', '0', true);
            perform pg_advisory_xact_lock(4711);
        when 'second_gate' then perform pg_advisory_xact_lock(4712);
        when 'late' then insert into judge.late values (7);
        when 'branch' then execute pg_catalog.format('insert into %I.books (key) values ($1)', message.tenant) using message.key;
        when 'at_commit' then insert into judge.late values (-hashtext(message.key)), (-hashtext(message.key));
        when 'endless' then perform pg_sleep(3600);
        when 'endless_at_commit' then insert into judge.put_off values (message.key);
        when 'no_table' then execute 'select 1 from judge.nowhere';
        when 'no_schema' then execute 'select nowhere.f()';
        when 'no_syntax' then perform to_tsquery('simple', 'a & & b');
        when 'no_number' then perform (message.payload ->> 'key')::integer;
        -- As where two transactions can't be put in an order: most of the time they can.
        when 'serialize' then
            if random() < 0.125 then raise exception 'no order' using errcode = 'serialization_failure'; end if;
        else null;
    end case;
    -- A handler at the gate has no response: storing one finds out whether the key is this transaction's, and the unique index has to be
    -- judged by itself.
    return case when message.payload ->> 'do' is distinct from 'gate' then jsonb_build_object('done', message.key) end;
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

-- Captures payments, all of a batch at once, and does nothing else: as fast as an application's own handler. Accounts are updated in their
-- order, so that two batches wait for each other in one direction only.
create function judge.capture(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
declare
    today integer := judge.today();
begin
    insert into judge.effects (tenant, key, n)
    select m.tenant, m.key, 1
    from unnest(messages) as m;

    insert into judge.log (tenant, key, attempt, digest, day, account, amount)
    select m.tenant, m.key, m.attempt, encode(sha256(m.body), 'hex'), today,
        'customer:' || (m.payload ->> 'customer'), (m.payload ->> 'amount')::bigint
    from unnest(messages) as m;

    insert into judge.accounts as a (tenant, account, balance)
    select m.tenant, e.account, sum(e.amount)
    from unnest(messages) as m
    cross join lateral (
        values
            ('customer:' || (m.payload ->> 'customer'), -(m.payload ->> 'amount')::bigint),
            ('revenue', (m.payload ->> 'amount')::bigint)
    ) as e (account, amount)
    group by m.tenant, e.account
    order by m.tenant, e.account
    on conflict (tenant, account) do update set balance = a.balance + excluded.balance;

    return query
    select m.seq, jsonb_build_object('captured', (m.payload ->> 'amount')::bigint)
    from unnest(messages) as m;
end
$$;

grant usage on schema judge to oncely_worker, oncely_emitter;
grant select, insert, update on judge.effects, judge.log, judge.hot, judge.accounts to oncely_worker;
grant select, insert, update, delete on judge.late to oncely_worker;
grant insert on judge.put_off, judge.reserved, judge.finished to oncely_worker;
grant select on judge.calendar to oncely_worker;
grant insert on judge.emitted to oncely_worker, oncely_emitter;
grant select, insert, update on judge.streams to oncely_worker, oncely_emitter;
grant execute on function judge.tell(text, text, text) to oncely_worker, oncely_emitter;
grant execute on function judge.take(oncely.message), judge.take_all(oncely.message[]), judge.capture(oncely.message[]) to oncely_worker;
