-- The newest decisions of a span of time, those behind a position alone where one is given. Each further filter is off where
-- its parameter is null. Whoever asks chooses a span that holds few rows, or a key: that goes through the index on its hash.
select tenant, oncely.bounded(occurred_at) as "occurred_at!", consumer, key, queue, outcome, reason, error_code, detail,
    attempt, duration_us, worker, login, trace_id, tableoid::bigint as "partition!", ctid::text as "place!"
from oncely.audit
where occurred_at >= $1
  and occurred_at < $2
  and ($3::timestamptz is null or (occurred_at, tableoid::bigint, ctid) < ($3, $4::bigint, $5::text::tid))
  and ($6::text is null or tenant = $6)
  and ($7::text is null or consumer = $7)
  and ($8::text is null or (hashtextextended(key, 0) = hashtextextended($8, 0) and key = $8))
  and ($9::text is null or outcome = $9)
  and ($10::text is null or reason = $10)
  and ($11::text is null or worker = $11)
order by occurred_at desc, tableoid::bigint desc, ctid desc
limit $12
