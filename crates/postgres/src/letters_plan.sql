-- Lists the letters that a requeue or a discard would change, oldest first, with the current state of each key. Probes
-- each key separately, so that a few letters do not cause a scan of the whole table of keys.
with wanted as materialized (
    select d.tenant, d.id, d.consumer, d.key, d.dead_lettered_at, d.reason, d.detail, d.queue, d.state, d.generation,
        d.failure_group, d.body_size, d.whole, d.from_client, d.fingerprint
    from oncely.dead_letters as d
    where d.state = any ($10)
      and ($1::text is null or d.tenant = $1)
      and ($2::text is null or d.consumer = $2)
      and ($3::text is null or d.queue = $3)
      and ($4::text is null or d.reason = $4)
      and ($5::text is null or d.failure_group = $5)
      and ($6::text is null or (hashtextextended(d.key, 0) = hashtextextended($6, 0) and d.key = $6))
      and ($7::timestamptz is null or d.dead_lettered_at >= $7)
      and ($8::timestamptz is null or d.dead_lettered_at < $8)
      and ($9::uuid[] is null or d.id = any ($9))
    order by d.dead_lettered_at, d.id
    limit $11
)
select d.tenant as "tenant!", d.id as "id!", d.consumer as "consumer!", d.key as "key!",
    oncely.bounded(d.dead_lettered_at) as "dead_lettered_at!", d.reason as "reason!", d.detail, d.queue as "queue!",
    d.state as "state!", d.generation as "generation!", d.failure_group as "failure_group!", d.body_size as "body_size!",
    d.whole as "whole!", d.from_client, i.status::text as "key_status?", i.reason as "key_reason?",
    coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true) as "same_payload!", m.memory as "memory!"
from (select array_agg(w.tenant) as tenants, array_agg(w.id) as ids from wanted as w) as a
cross join lateral oncely.letter_memories(a.tenants, a.ids, $12::timestamptz) as m
join wanted as d on d.tenant = m.tenant and d.id = m.id
left join lateral (
    select k.status, k.reason, k.fingerprint from oncely.idempotency_keys as k
    where k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
    limit 1
) as i on true
order by d.dead_lettered_at, d.id
