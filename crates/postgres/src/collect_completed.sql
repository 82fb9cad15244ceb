-- One bounded batch of keys that took effect before $2, through the partial index. By ctid, because that is five times
-- cheaper than by key; in a file of its own, because Citus needs the form by key.
-- From $4 on, where the batch before ended: the index still holds what that one deleted, and each batch would walk over it.
-- oncely.delete_keys decides which of them go. That none goes whose mirror record may still be pending stands here, too: where the relay
-- is away, these are not looked at. Of all tenants but $5, or of these alone ($6): those have a retention of their own. What is looked at is bounded, and not what is found:
-- keys that stay may be many.
-- It waits for a transaction that holds one of the rows, and then asks status and age of the row's new version: a key that was taken again stays.
-- (Servers from before the minor releases of November 2025 do not ask for the place again: "Add missing EPQ recheck for TID Scan".) A place
-- is no other row's meanwhile: as long as this statement sees the row, nothing takes its place.
with walked as materialized (
    select i.ctid as place, completed_at as at,
        (i.tenant = any ($5)) = $6 as is_due
    from oncely.idempotency_keys as i
    where status = 'COMPLETED' and consumer = $1 and expires_at is null
      and completed_at >= coalesce($4::timestamptz, '-infinity')
      and completed_at < least($2, (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q))
    order by completed_at
    limit $3
)
select count(*) as "found!", oncely.delete_keys(array(select place from walked where is_due), 'COMPLETED') as "deleted!",
    oncely.bounded(max(at)) as last
from walked
