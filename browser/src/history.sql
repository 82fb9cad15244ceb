-- For pictures alone: what the last hour may have been like, and the five minutes in which pictures are taken. Checks know nothing of it.
insert into oncely.stats (
    at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks, outages, durations
)
select
    s.at, s.consumer, s.process, sum_of.total, s.done, 0, s.duplicates, s.retried, 0, s.dead, 0, 0,
    -- Most within 5 and 25 ms, some far slower: by the bounds of the buckets.
    array[
        0, 0, 0, s.done / 10, s.done / 2, s.done - s.done / 10 - s.done / 2 - s.done / 12 - s.done / 50, s.done / 12, 0, 0, s.done / 50,
        s.duplicates, 0, s.retried, 0, 0, 0, 0, 0, 0, 0
    ]::bigint[]
from (
    select
        date_bin('10 seconds', clock_timestamp(), '2026-01-01') - n * interval '10 seconds' as at,
        c.consumer,
        '01900000-0000-7000-8000-000000000000'::uuid as process,
        (c.base * (1 + 0.3 * sin(n / 40.0 + c.base) + 0.12 * sin(n / 5.0) + 0.15 * random()))::bigint as done,
        (c.base * 0.04 * (1 + sin(n / 17.0)) + case when n between 190 and 204 then c.base * 0.5 else 0 end)::bigint as duplicates,
        case when n between 96 and 110 then (c.base * 0.2)::bigint else 0 end as retried,
        case when n in (97, 99, 104) then 4 else 0 end::bigint as dead
    from generate_series(-30, 359) as n
    cross join (values ('payments', 4200.0), ('ledger', 2600.0), ('emails', 500.0)) as c (consumer, base)
) as s
cross join lateral (select s.done + s.duplicates + s.retried + s.dead as total) as sum_of
on conflict do nothing;

insert into oncely.relay_stats (at, target, process, relayed, failed, parked, records, oldest_age)
select
    date_bin('10 seconds', clock_timestamp(), '2026-01-01') - n * interval '10 seconds', t.target, '01900000-0000-7000-8000-000000000000',
    t.base, 0, 0, t.base / 40, t.age * (1 + 0.4 * sin(n / 30.0) + 0.3 * random()) + case when n between 190 and 210 then t.age * 30 else 0 end
from generate_series(-30, 359) as n
cross join (values ('rabbitmq', 900, 0.12), ('redis', 6800, 0.03)) as t (target, base, age)
on conflict do nothing;
