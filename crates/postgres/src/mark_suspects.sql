-- Counts a run after a redelivery, before the run begins, and records the session that serves it. Counts only keys that
-- may run: not a key that took effect or was given up, has another payload, runs under leases (their claims count), has
-- to wait, or has a counted run that is still at work. Avoids ON CONFLICT DO UPDATE: see fail.sql.
with suspects as materialized (
    select k.*
    from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
), open as materialized (
    select i.tenant, i.key
    from suspects as k
    join oncely.idempotency_keys as i on i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
    where i.status = 'IN_PROGRESS'
      and i.fencing_token is null
      and (i.not_before is null or i.not_before <= $9)
      and ($6 or i.fingerprint is null or k.fingerprint is null or oncely.same_payload(i.fingerprint, k.fingerprint))
      -- The CASE keeps this a condition of the row. As an anti join it would not be rechecked for a row that another
      -- session marked during the lock wait.
      and case when i.marked_pid <> $7 then not oncely.is_at_work(i.marked_pid, i.marked_backend_start) else true end
    order by i.tenant, i.key
    for update of i
), counted as (
    update oncely.idempotency_keys as i
    set crash_attempts = i.crash_attempts + 1, marked_pid = $7, marked_backend_start = $8
    from open as o
    where i.tenant = o.tenant and i.consumer = $1 and i.key = o.key
    returning i.tenant, i.key
), written as (
    insert into oncely.idempotency_keys
        (tenant, consumer, key, status, attempts, crash_attempts, created_at, fingerprint, marked_pid, marked_backend_start)
    select k.tenant, $1, k.key, 'IN_PROGRESS', 0, 1, $2, k.fingerprint, $7, $8
    from suspects as k
    where not exists (
        select from oncely.idempotency_keys as i where i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
    )
    order by k.tenant collate "C", k.key collate "C"
    on conflict (tenant, consumer, key) do nothing
    returning tenant, key
)
select tenant as "tenant!", key as "key!" from counted union all select tenant, key from written
