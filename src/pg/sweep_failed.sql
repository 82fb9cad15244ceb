-- One bounded batch of keys that were given up before $2, from $4 on, where the batch before ended.
with due as materialized (
    select ctid as place, completed_at as at
    from oncely.idempotency_keys
    where status = 'FAILED' and consumer = $1 and expires_at is null
      and completed_at >= coalesce($4::timestamptz, '-infinity') and completed_at < $2
    order by completed_at
    limit $3
    for update skip locked
), gone as (
    delete from oncely.idempotency_keys
    where ctid = any (array(select place from due))
)
select count(*) as "deleted!", oncely.bounded(max(at)) as last
from due
