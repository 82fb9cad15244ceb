-- Lists the letters that a requeue or a discard would change, oldest first.
select d.tenant, d.id, d.consumer, d.key, oncely.bounded(d.dead_lettered_at) as "dead_lettered_at!", d.reason, d.detail, d.queue,
    d.state, d.generation, d.failure_group, d.body_size, d.whole as "whole!", d.from_client
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
