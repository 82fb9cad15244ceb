-- Dead letters, newest first. Each filter is off where its parameter is null. Not the message itself: an auditor may not
-- read that.
select tenant, id, consumer, key, oncely.bounded(dead_lettered_at) as "dead_lettered_at!", reason, error_code, detail, attempt, queue, worker, trace_id, state,
    generation, times, failure_group, exchange, routing_key, body_size, whole as "whole!", encrypted_by, omitted, oncely.bounded(updated_at) as "updated_at!", oncely.bounded(swept_at) as swept_at
from oncely.dead_letters
where ($1::text is null or tenant = $1)
  and ($2::text is null or consumer = $2)
  and ($3::text is null or queue = $3)
  and ($4::text is null or reason = $4)
  and ($5::text is null or failure_group = $5)
  and ($6::text is null or (hashtextextended(key, 0) = hashtextextended($6, 0) and key = $6))
  and ($7::timestamptz is null or dead_lettered_at >= $7)
  and ($8::timestamptz is null or dead_lettered_at < $8)
  and ($9::uuid[] is null or id = any ($9))
  and ($10::text[] is null or state = any ($10))
  and ($12::timestamptz is null or (dead_lettered_at, id) < ($12, $13::uuid))
order by dead_lettered_at desc, id desc
limit $11
