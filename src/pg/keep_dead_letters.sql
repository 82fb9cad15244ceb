-- Keeps a searchable copy of each dead letter; the generation returned goes into the header of the queue's copy. A message
-- that is dead-lettered again finds its row: where it was requeued or discarded before, it came back, as the next
-- generation. Where nothing ran this time (it was given up before), why it failed stays as it was.
-- In one order, like every statement that locks several of these rows: no deadlock.
insert into oncely.dead_letters as d
    (tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id, state, generation,
    times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, body_size, updated_at)
select n.tenant, n.id, $1, n.key, $3, n.reason, n.error_code, n.detail, n.attempt, n.queue, $2, n.trace_id, 'waiting', 1,
    n.times, n.failure_group, n.exchange, n.routing_key, n.fingerprint, n.properties, n.headers, n.body, n.body_size, $3
from unnest(
    $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::text[], $10::integer[], $11::text[], $12::text[],
    $13::integer[], $14::text[], $15::text[], $16::text[], $17::bytea[], $18::jsonb[], $19::jsonb[], $20::bytea[], $21::bigint[]
) as n (tenant, id, key, reason, error_code, detail, attempt, queue, trace_id, times, failure_group, exchange, routing_key,
    fingerprint, properties, headers, body, body_size)
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
    generation = case when d.state = 'waiting' then d.generation else d.generation + 1 end,
    times = d.times + excluded.times,
    exchange = excluded.exchange,
    routing_key = excluded.routing_key,
    fingerprint = excluded.fingerprint,
    properties = excluded.properties,
    headers = excluded.headers,
    body = excluded.body,
    body_size = excluded.body_size,
    updated_at = case when d.state = 'waiting' then d.updated_at else excluded.updated_at end,
    swept_at = null
returning d.tenant, d.id, d.generation
