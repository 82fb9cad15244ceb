-- A database as it is after a month: bench.trail decisions, of which each hundredth is a dead letter, and bench.keys keys.
-- All numbers are drawn from n, the place of a decision in the trail: what is filled twice is the same.
set jit = off;
set work_mem = '64MB';
set maintenance_work_mem = '256MB';

select oncely.make_audit_partitions(now() - interval '35 days', now() + interval '14 days');
select oncely.register_consumer(c, '7 days', '1 day', 'body', 'dead_letter', 'worker-1')
from unnest(array['payments', 'ledger', 'mail']) as c;

-- When: of the newest tenth of the trail 10,000 a second, of the third before it those of a day, the rest those of a month. Two hundred
-- are decided at once. Oldest first, as they come.
create function bench.age(back bigint, trail bigint) returns double precision
language sql immutable
as $$
    select case
        when back < trail * 0.1 then back / 10000.0
        when back < trail * 0.4 then trail * 0.00001 + (back - trail * 0.1) / (trail * 0.3) * 86400
        else trail * 0.00001 + 86400 + (back - trail * 0.4) / (trail * 0.6) * 2505600
    end
$$;

create function bench.decided_at(n bigint, trail bigint, at timestamptz) returns timestamptz
language sql stable
as $$ select at - interval '1 second' * bench.age(trail - n / 200 * 200, trail) $$;

-- Who: twenty tenants, each about two thirds of the one before; and one of a handful of messages.
create function bench.tenant(n bigint) returns text
language sql immutable
as $$
    select case
        when n % 250000 = 77 then 'tenant-rare'
        else 'tenant-' || lpad(least(floor(-2.5 * ln((1 + abs(hashint8(n)::bigint)) / 2147483650.0)), 19)::text, 2, '0')
    end
$$;

create function bench.consumer(n bigint) returns text
language sql immutable
as $$ select case when n / 7 % 10 < 6 then 'payments' when n / 7 % 10 < 9 then 'ledger' else 'mail' end $$;

create function bench.outcome(n bigint) returns text
language sql immutable
as $$
    select case
        when n % 100 = 0 then 'dead_lettered'
        when n % 500 = 1 then 'retried'
        when n % 100 = 2 then 'duplicate'
        when n % 200 = 3 then 'refused'
        else 'completed'
    end
$$;

-- Why it was dead-lettered: half of them for one reason.
create function bench.reason(n bigint) returns text
language sql immutable
as $$
    select case
        when n % 200 = 0 then 'attempts_exhausted'
        when n % 100000 = 100 then 'crash'
        when n % 1000 = 300 then 'key_conflict'
        else 'handler_rejected'
    end
$$;

insert into oncely.audit (
    tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, reason, error_code, detail, worker
)
select bench.tenant(n), bench.decided_at(n, s.trail, now()), case when outcome = 'duplicate' then 0 else 1 end,
    2000 + n % 5000, bench.consumer(n), md5(n::text)::uuid::text, bench.consumer(n), outcome,
    case outcome
        when 'dead_lettered' then bench.reason(n)
        when 'retried' then 'handler_failed'
        when 'duplicate' then (array['mirror', 'postgres', 'batch'])[1 + n % 3]
    end,
    case when outcome in ('dead_lettered', 'retried') then '22P02' end,
    case when outcome in ('dead_lettered', 'retried') then 'invalid input syntax for "amount" of message ' || n end,
    'worker-' || n / 200 % 4
from (select current_setting('bench.trail')::bigint as trail) as s
cross join lateral generate_series(1, s.trail) as n
cross join lateral (select bench.outcome(n) as outcome) as o;

insert into oncely.dead_letters (
    tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, state, generation,
    times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, body_size, updated_at
)
select bench.tenant(n), md5('letter' || n)::uuid, bench.consumer(n), md5(n::text)::uuid::text, at, reason, '22P02',
    'invalid input syntax for "amount" of message ' || n, 6, bench.consumer(n), 'worker-' || n / 200 % 4,
    case n / 100 % 20 when 7 then 'requeued' when 8 then 'requeued' when 9 then 'discarded' else 'waiting' end,
    1 + (n % 2300 = 0)::integer, 1,
    reason || '/22P02/' || case reason when 'attempts_exhausted' then '00000000' else left(md5((n % 3700)::text), 8) end,
    'orders', 'order.paid', oncely.stored_fingerprint(sha256(n::text::bytea)), '{"type": "paid"}',
    '{"x-tenant-id": "acme"}', convert_to(repeat('{"card": "4111"}', 18), 'UTF8'), 288, at
from (select current_setting('bench.trail')::bigint as trail) as s
cross join lateral generate_series(100, s.trail, 100) as n
cross join lateral (
    select bench.decided_at(n, s.trail, now()) as at, bench.reason(n) as reason
) as l;

-- The newest have their keys, and what was given up within the retention.
with wanted as (
    select n, s.trail, bench.outcome(n) as outcome
    from (
        select current_setting('bench.trail')::bigint as trail, current_setting('bench.keys')::bigint as keys
    ) as s
    cross join lateral generate_series(1, s.trail) as n
    where n > s.trail - s.keys
       or n % 100 = 0 and bench.decided_at(n, s.trail, now()) > now() - interval '7 days'
)
insert into oncely.idempotency_keys (
    tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, error_code, last_error,
    not_before
)
select bench.tenant(n), bench.consumer(n), md5(n::text)::uuid::text,
    (case outcome when 'dead_lettered' then 'FAILED' when 'retried' then 'IN_PROGRESS' else 'COMPLETED' end)::oncely.key_status,
    case outcome when 'dead_lettered' then 6 else 1 end, at, case when outcome <> 'retried' then at end,
    oncely.stored_fingerprint(sha256(n::text::bytea)), case outcome when 'dead_lettered' then bench.reason(n) end,
    case when outcome in ('dead_lettered', 'retried') then '22P02' end,
    case when outcome in ('dead_lettered', 'retried') then 'invalid input syntax for "amount" of message ' || n end,
    case outcome when 'retried' then now() + interval '10 minutes' end
from wanted
cross join lateral (select bench.decided_at(n, trail, now()) as at) as t;

-- Minutes of a week, and of the last two hours spans of ten seconds by each of four workers.
insert into oncely.stats
select date_bin('1 minute', now() - m * interval '1 minute', 'epoch'), c, '00000000-0000-0000-0000-000000000000',
    6000 + m % 900, 5900 + m % 900, 10, 60, 20, 0, 10, 0, 0, array_fill(300::bigint, array[20])
from generate_series(121, 10079) as m, unnest(array['payments', 'ledger', 'mail']) as c;
insert into oncely.stats
select date_bin('10 seconds', now() - s * interval '10 seconds', 'epoch'), c, md5('worker' || p)::uuid,
    250 + s % 30, 240 + s % 30, 1, 6, 2, 0, 1, 0, 0, array_fill(12::bigint, array[20])
from generate_series(1, 720) as s, generate_series(1, 4) as p, unnest(array['payments', 'ledger', 'mail']) as c;
insert into oncely.relay_stats
select date_bin('1 minute', now() - m * interval '1 minute', 'epoch'), t, '00000000-0000-0000-0000-000000000000',
    6000 + m % 900, 0, 0, 100, 0.5
from generate_series(121, 10079) as m, unnest(array['redis', 'rabbitmq']) as t;
insert into oncely.relay_stats
select date_bin('10 seconds', now() - s * interval '10 seconds', 'epoch'), t, md5('relay' || p)::uuid, 500, 0, 0, 100, 0.5
from generate_series(1, 720) as s, generate_series(1, 2) as p, unnest(array['redis', 'rabbitmq']) as t;

select oncely.beat(
    md5('worker' || p)::uuid, 'worker', 'worker-' || p, '0.1.0', 'host-' || p, p, 'digest', 'ready', null, '[]'
)
from generate_series(1, 4) as p;
select oncely.beat(md5('relay' || p)::uuid, 'relay', 'relay-' || p, '0.1.0', 'host-' || p, p, 'digest', 'ready', null, '[]')
from generate_series(1, 2) as p;

insert into oncely.events (
    tenant, id, created_at, available_at, attempts, state, exchange, routing_key, payload, reason, last_error
)
select bench.tenant(n), gen_random_uuid(), now() - n * interval '50 milliseconds', now(), 0,
    case when n % 50 = 0 then 'parked' else 'pending' end, 'captured', 'order.captured',
    convert_to(repeat('x', 300), 'UTF8'), case when n % 50 = 0 then 'unroutable' end,
    case when n % 50 = 0 then 'NO_ROUTE' end
from generate_series(1, 20000) as n;

insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
select '', gen_random_uuid(), now() - n * interval '7 minutes', 'ana', 'requeue', '{"consumer": "payments"}', n, 'a deployment'
from generate_series(1, 5000) as n;
