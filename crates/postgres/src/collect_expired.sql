-- Deletes a bounded batch of keys with an end of their own (oncely.claim), of any consumer, from $3 on, the end of the
-- previous batch. The limit bounds the rows scanned, as in collect_completed.sql.
with walked as materialized (
    select i.ctid as place, expires_at as at
    from oncely.idempotency_keys as i
    where expires_at >= coalesce($3::timestamptz, '-infinity') and expires_at < $1
    order by expires_at
    limit $2
), due as materialized (
    select i.ctid as place
    from oncely.idempotency_keys as i
    where ctid = any (array(select place from walked))
      and expires_at < $1
      and oncely.may_be_forgotten(
          i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
          i.fencing_token, $1, oncely.forgotten_before(
              $1, i.expires_at - i.created_at,
              coalesce((select c.paused from oncely.consumers as c where c.consumer = i.consumer), '{}')
          ), (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q)
      )
    for update of i skip locked
)
select count(*) as "found!", oncely.delete_keys(array(select place from due), unit => $4) as "deleted!", oncely.bounded(max(at)) as last
from walked
