-- Returns the steps of the given keys, without their results. Only Oncely's functions write steps.
select n.tenant as "tenant!", n.consumer as "consumer!", n.key as "key!", s.name as "name!", s.step ->> 'state' as "state!", s.step ->> 'repeat' as repeat,
    coalesce((s.step ->> 'round')::integer, 0) as "round!", (s.step ->> 'started_at')::timestamptz as started_at,
    (s.step ->> 'done_at')::timestamptz as done_at
from unnest($1::text[], $2::text[], $3::text[]) as n (tenant, consumer, key)
-- Probes the primary key once per key, even if few keys are expected.
cross join lateral (
    select i.steps
    from oncely.idempotency_keys as i
    where oncely.in_group(i.tenant, $1) and i.tenant = n.tenant and i.consumer = n.consumer and i.key = n.key
    limit 1
) as k
cross join lateral jsonb_each(k.steps) as s (name, step)
order by n.consumer, n.tenant, n.key, coalesce(s.step ->> 'started_at', s.step ->> 'done_at'), s.name
