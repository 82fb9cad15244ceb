-- Returns the state of these letters' keys at $4, each letter in the given generation.
select d.tenant, d.id, d.generation,
    coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true) as "same_payload!", m.memory as "memory!"
from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
join oncely.letter_memories($1::text[], $2::uuid[], $4::timestamptz) as m on m.tenant = d.tenant and m.id = d.id
left join lateral (
    select k.fingerprint from oncely.idempotency_keys as k
    where k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
    limit 1
) as i on true
