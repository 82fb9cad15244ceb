-- A consumer's keys of this status, the newest first, from a place on, through the partial index of that status.
select i.tenant, i.consumer, i.key, i.status::text as "status!", i.attempts, i.crash_attempts,
    oncely.bounded(i.created_at) as "created_at!", oncely.bounded(i.completed_at) as completed_at,
    oncely.bounded(i.expires_at) as expires_at, oncely.bounded(i.not_before) as not_before, i.reason, i.error_code,
    i.last_error
from oncely.idempotency_keys as i
where i.status = 'FAILED'
  and i.consumer = $1
  and ($2::text is null or i.tenant = $2)
  and ($3::timestamptz is null or i.completed_at >= $3)
  and ($4::timestamptz is null or i.completed_at < $4)
  and ($5::timestamptz is null or i.completed_at <= $5 and (i.completed_at, i.tenant, i.key) < ($5, $6, $7))
order by i.completed_at desc, i.tenant desc, i.key desc
limit $8
