-- What is known of the keys of these letters at $4, each letter in the generation that was meant.
select d.tenant, d.id, d.generation,
    coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true) as "same_payload!",
    oncely.letter_memory(d.tenant, d.consumer, d.key, d.dead_lettered_at, $4::timestamptz) as "memory!"
from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
left join oncely.idempotency_keys as i on i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
