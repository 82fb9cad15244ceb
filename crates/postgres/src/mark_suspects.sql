-- Counts a run after a redelivery, before the run begins, and records the session that serves it. Counts only keys that
-- may run: not a key that took effect or was given up, has another payload, runs under leases (their claims count), has
-- to wait, or has a counted run that is still at work.
with open as materialized (
    select i.tenant, i.key
    from unnest($2::text[], $3::text[], $4::bytea[]) as k (tenant, key, fingerprint)
    join oncely.idempotency_keys as i on i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
    where oncely.in_group(i.tenant, $2)
      and i.status = 'IN_PROGRESS'
      and i.fencing_token is null
      and (i.not_before is null or i.not_before <= $8)
      and ($5 or i.fingerprint is null or k.fingerprint is null or oncely.same_payload(i.fingerprint, k.fingerprint))
      -- The CASE keeps this a condition of the row. As an anti join it would not be rechecked for a row that another
      -- session marked during the lock wait.
      and case when i.marked_pid <> $6 then not oncely.is_at_work(i.marked_pid, i.marked_backend_start) else true end
    order by i.tenant, i.key
    for update of i
)
update oncely.idempotency_keys as i
set crash_attempts = i.crash_attempts + 1, marked_pid = $6, marked_backend_start = $7
from open as o
where oncely.in_group(i.tenant, $2) and i.tenant = o.tenant and i.consumer = $1 and i.key = o.key
returning i.tenant, i.key
