-- Deletes keys like collect_completed.sql, without rows that another transaction holds: locks each row first, which
-- costs a third more.
with walked as materialized (
    select i.ctid as place, completed_at as at,
        (i.tenant = any ($5)) = $6 as is_due
    from oncely.idempotency_keys as i
    where status = 'COMPLETED' and consumer = $1 and expires_at is null
      and completed_at >= coalesce($4::timestamptz, '-infinity')
      and completed_at < least($2, (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q))
    order by completed_at
    limit $3
), due as materialized (
    select i.ctid as place
    from oncely.idempotency_keys as i
    where ctid = any (array(select place from walked where is_due))
      and status = 'COMPLETED' and consumer = $1 and expires_at is null and completed_at < $2
    for update of i skip locked
)
select count(*) as "found!", oncely.delete_keys(array(select place from due), unit => $7) as "deleted!", oncely.bounded(max(at)) as last
from walked
