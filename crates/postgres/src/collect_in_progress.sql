-- Deletes a bounded batch of keys left without a retry: first claimed before $2, and forgettable at $7, from $4 on, the
-- end of the previous batch. Covers all tenants but $5, or only those ($6), as in collect_completed.sql.
with walked as materialized (
    select i.ctid as place, created_at as at, (i.tenant = any ($5)) = $6 as is_due
    from oncely.idempotency_keys as i
    where status = 'IN_PROGRESS' and consumer = $1 and expires_at is null
      and created_at >= coalesce($4::timestamptz, '-infinity') and created_at < $2
    order by created_at
    limit $3
), due as materialized (
    select i.ctid as place
    from oncely.idempotency_keys as i
    where ctid = any (array(select place from walked where is_due))
      and status = 'IN_PROGRESS' and consumer = $1 and expires_at is null and created_at < $2
      and oncely.may_be_forgotten(
          i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
          -- No mirror record: those are of completed keys.
          i.fencing_token, $7, $2, null
      )
    for update of i skip locked
)
select count(*) as "found!", oncely.delete_keys(array(select place from due), unit => $8) as "deleted!", oncely.bounded(max(at)) as last
from walked
