-- Events, oldest first. Each filter is off where its parameter is null. Not the message itself: an auditor may not read that.
select tenant, id, oncely.bounded(created_at) as "created_at!", oncely.bounded(available_at) as "available_at!", attempts, state, reply, exchange, routing_key, ordering_key, ordering_number,
    message_id, type as kind, correlation_id, reason, last_error
from oncely.events
where ($1::text is null or tenant = $1)
  and ($2::text is null or exchange = $2)
  and ($3::text is null or routing_key = $3)
  and ($4::text is null or ordering_key = $4)
  and ($5::text is null or reason = $5)
  and ($6::timestamptz is null or created_at < $6)
  and ($7::uuid[] is null or id = any ($7))
  and ($8::text is null or state = $8)
order by created_at, id
limit $9
