-- Returns the status of these letters' keys, each letter in the given generation. Probes each key separately, so
-- that a few letters do not cause a scan of the whole table of keys.
select d.tenant, d.id, d.generation, i.status::text as "key_status?", i.reason as "key_reason?",
    coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true) as "same_payload!"
from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
join oncely.dead_letters as d
    on oncely.in_group(d.tenant, $1) and d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
left join lateral (
    select k.status, k.reason, k.fingerprint from oncely.idempotency_keys as k
    where oncely.in_group(k.tenant, $1) and k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
    limit 1
) as i on true
