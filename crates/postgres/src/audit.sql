-- Inserts audit rows of a batch. A value that all rows share is passed once ($14 to $17), with an empty array.
insert into oncely.audit
    (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, reason, error_code, detail, worker, trace_id)
select a.tenant, $1, coalesce(a.attempt, $14), coalesce(a.duration_us, $15), $2, a.key, coalesce(a.queue, $16),
    coalesce(a.outcome, $17), a.reason, a.error_code, a.detail, $3, a.trace_id
from unnest(
    $4::text[], $5::integer[], $6::bigint[], $7::text[], $8::text[], $9::text[], $10::text[], $11::text[], $12::text[],
    $13::text[]
) as a (tenant, attempt, duration_us, key, queue, outcome, reason, error_code, detail, trace_id)
