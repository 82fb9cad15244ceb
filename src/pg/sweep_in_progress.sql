-- One bounded batch of keys whose retry never came back: first claimed before $2, and no retry can be older. From $4 on, where
-- the batch before ended.
with due as materialized (
    select ctid as place, created_at as at
    from oncely.idempotency_keys
    where status = 'IN_PROGRESS' and consumer = $1 and expires_at is null
      and created_at >= coalesce($4::timestamptz, '-infinity') and created_at < $2
    order by created_at
    limit $3
    for update skip locked
), gone as (
    delete from oncely.idempotency_keys
    where ctid = any (array(select place from due))
)
select count(*) as "deleted!", oncely.bounded(max(at)) as last
from due
