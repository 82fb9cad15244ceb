-- A tenant's keys in the order of the primary key, from a place on. Not what a handler answered: an auditor may not read that.
select i.tenant, i.consumer, i.key, i.status::text as "status!", i.attempts, i.crash_attempts,
    oncely.bounded(i.created_at) as "created_at!", oncely.bounded(i.completed_at) as completed_at,
    oncely.bounded(i.expires_at) as expires_at, oncely.bounded(i.not_before) as not_before, i.reason, i.error_code,
    i.last_error
from oncely.idempotency_keys as i
where i.tenant = $1
  and ($2::text is null or i.consumer = $2)
  and ($3::text is null or (i.consumer, i.key) > ($3, $4))
order by i.consumer, i.key
limit $5
