-- Deletes a bounded batch of keys that took effect before $2, found through the partial index. Addresses rows by ctid,
-- which is five times cheaper than by key. Starts at $4, the end of the previous batch: the index still holds the
-- entries deleted there, and each batch would scan them again. oncely.delete_keys decides which keys may go. The
-- condition on pending mirror records is repeated here, so that these keys are not scanned while the relay is away.
-- Covers all tenants but $5, or only those ($6), which have a retention of their own. The limit bounds the rows
-- scanned, not the rows found: many keys may have to stay. Waits for a transaction that holds one of the rows, then
-- rechecks status and age of the new row version: a key that was claimed again stays. (Servers older than the minor
-- releases of November 2025 do not recheck the ctid: "Add missing EPQ recheck for TID Scan".) No other row takes a ctid
-- as long as this statement sees its row.
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
select count(*) as "found!", oncely.delete_keys(array(select place from walked where is_due), 'COMPLETED', unit => $7) as "deleted!",
    oncely.bounded(max(at)) as last
from walked
