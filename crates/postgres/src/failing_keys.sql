-- Lists each consumer's ($1) oldest failing keys, up to $2.
select f.consumer as "consumer!", f.tenant as "tenant!", f.key as "key!", f.attempts as "attempts!",
    oncely.bounded(f.created_at) as "created_at!", f.last_error, oncely.bounded(f.not_before) as not_before
from unnest($1::text[]) as c (consumer)
cross join lateral (
    select i.consumer, i.tenant, i.key, i.attempts, i.created_at, i.last_error, i.not_before
    from oncely.idempotency_keys as i
    where i.status = 'IN_PROGRESS' and i.consumer = c.consumer and i.attempts > 0
    order by i.created_at
    limit $2
) as f
order by f.consumer, f.created_at
