-- Keeps a searchable copy of each dead letter; the returned generation goes into the header of the queue's copy. A
-- message that is dead-lettered again finds its row: after a requeue or discard, that row starts its next generation.
-- If no handler ran this time (the key was given up before), the cause of the failure stays as it was. Inserts in key
-- order, like every statement that locks several of these rows: no deadlock. A letter beyond its tenant's quota ($23,
-- $24, unless an operator set another) is kept without body and headers, and so are the tenant's letters behind it in
-- the batch. A stored letter counts once, and stays stored: the same message may come again with more headers than fit.
with given as materialized (
    select n.tenant, n.id, n.place,
        coalesce(octet_length(n.body), 0) + coalesce(octet_length(n.headers::text), 0) as size,
        coalesce(d.stored_size, 0) as size_before
    from unnest($4::text[], $5::uuid[], $19::jsonb[], $20::bytea[]) with ordinality as n (tenant, id, headers, body, place)
    left join oncely.dead_letters as d on oncely.in_group(d.tenant, $4) and d.tenant = n.tenant and d.id = n.id
), tenants as materialized (
    select t.tenant,
        coalesce(l.letters, $23::bigint) - coalesce(u.letters, 0) - g.letters as letters_left,
        coalesce(l.letter_bytes, $24::bigint) - coalesce(u.bytes, 0) - g.bytes as bytes_left
    from (select distinct g.tenant from given as g) as t
    left join oncely.tenant_limits as l on l.tenant = t.tenant
    left join oncely.letter_usage as u on oncely.in_group(u.tenant, $4) and u.tenant = t.tenant
    cross join lateral (
        select coalesce(sum(s.letters), 0) as letters, coalesce(sum(s.bytes), 0) as bytes
        from oncely.letter_growth as s
        where oncely.in_group(s.tenant, $4) and s.tenant = t.tenant
    ) as g
), judged as materialized (
    select g.tenant, g.place, g.size, g.size_before,
        g.size <= g.size_before or (
            count(*) filter (where g.size > 0 and g.size_before = 0) over up_to_it <= t.letters_left
            and sum(greatest(g.size - g.size_before, 0)) over up_to_it <= t.bytes_left
        ) as fits
    from given as g
    join tenants as t on t.tenant = g.tenant
    window up_to_it as (partition by g.tenant order by g.place)
), grown as (
    insert into oncely.letter_growth (tenant, letters, bytes)
    select j.tenant, count(*) filter (where j.size_before = 0), sum(j.size - j.size_before)
    from judged as j
    where j.fits and j.size > j.size_before
    group by j.tenant
)
insert into oncely.dead_letters as d
    (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id, state, generation,
    times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, encrypted_by, body_size, omitted, updated_at)
select n.tenant, n.id, $1, n.key, $3, n.reason, n.error_code, n.detail, n.attempt, n.queue, $2, n.trace_id, 'waiting', 1,
    n.times, n.failure_group, n.exchange, n.routing_key, n.fingerprint, n.properties, case when j.fits then n.headers end,
    case when j.fits then n.body end, case when j.fits then n.encrypted_by end, n.body_size, case when j.fits then n.omitted else 'quota' end, $3
from unnest(
    $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::integer[], $11::text[], $12::text[],
    $13::integer[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::jsonb[], $19::jsonb[], $20::bytea[], $21::bigint[],
    $22::text[], $25::text[]
) with ordinality as n (tenant, id, key, reason, error_code, detail, attempt, queue, trace_id, times, failure_group, exchange,
    routing_key, fingerprint, properties, headers, body, body_size, omitted, encrypted_by, place)
join judged as j on j.place = n.place
order by n.tenant collate "C", n.id
on conflict (tenant, id) do update
set dead_lettered_at = excluded.dead_lettered_at,
    error_code = case when excluded.attempt = 0 and excluded.reason = d.reason then d.error_code else excluded.error_code end,
    detail = case when excluded.attempt = 0 and excluded.reason = d.reason then d.detail else excluded.detail end,
    attempt = case when excluded.attempt = 0 and excluded.reason = d.reason then d.attempt else excluded.attempt end,
    failure_group = case when excluded.attempt = 0 and excluded.reason = d.reason then d.failure_group else excluded.failure_group end,
    reason = excluded.reason,
    queue = excluded.queue,
    worker = excluded.worker,
    trace_id = excluded.trace_id,
    state = 'waiting',
    from_client = false,
    generation = case when d.state = 'waiting' then d.generation else d.generation + 1 end,
    times = d.times + excluded.times,
    exchange = excluded.exchange,
    routing_key = excluded.routing_key,
    fingerprint = excluded.fingerprint,
    properties = case when excluded.omitted = 'quota' and d.whole and d.queue = excluded.queue then d.properties else excluded.properties end,
    headers = case when excluded.omitted = 'quota' and d.whole and d.queue = excluded.queue then d.headers else excluded.headers end,
    body = case when excluded.omitted = 'quota' and d.whole and d.queue = excluded.queue then d.body else excluded.body end,
    encrypted_by = case when excluded.omitted = 'quota' and d.whole and d.queue = excluded.queue then d.encrypted_by else excluded.encrypted_by end,
    body_size = excluded.body_size,
    omitted = case when excluded.omitted = 'quota' and d.whole and d.queue = excluded.queue then d.omitted else excluded.omitted end,
    updated_at = case when d.state = 'waiting' then d.updated_at else excluded.updated_at end,
    swept_at = null
returning d.tenant, d.id, d.generation
