-- The newest decisions first. Each filter is off where its parameter is null. The key goes through the index on its
-- hash.
select tenant, oncely.bounded(occurred_at) as "occurred_at!", consumer, key, queue, outcome, reason, error_code, detail, attempt, duration_us, worker, login, trace_id
from oncely.audit
where ($1::text is null or tenant = $1)
  and ($2::text is null or consumer = $2)
  and ($3::text is null or (hashtextextended(key, 0) = hashtextextended($3, 0) and key = $3))
  and ($4::text is null or outcome = $4)
  and ($5::text is null or reason = $5)
  and ($6::timestamptz is null or occurred_at >= $6)
  and ($7::timestamptz is null or occurred_at < $7)
order by occurred_at desc
limit $8
