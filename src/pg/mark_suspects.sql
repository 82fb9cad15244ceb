-- Counts a run that begins after a redelivery, before it begins, and names the session that serves it. Only keys that may run: not one
-- that took effect or was given up, not another payload's, not one that is to wait, and not one whose counted run is still at work.
insert into oncely.idempotency_keys as i
    (tenant, consumer, key, status, attempts, crash_attempts, created_at, fingerprint, marked_pid, marked_backend_start)
select k.tenant, $1, k.key, 'IN_PROGRESS', 0, 1, $2, k.fingerprint, $7, $8
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
on conflict (tenant, consumer, key) do update
set crash_attempts = i.crash_attempts + 1, marked_pid = excluded.marked_pid, marked_backend_start = excluded.marked_backend_start
where i.status = 'IN_PROGRESS'
  and (i.not_before is null or i.not_before <= $9)
  and ($6 or i.fingerprint is null or excluded.fingerprint is null or oncely.same_payload(i.fingerprint, excluded.fingerprint))
  and not exists (
      select from pg_stat_activity as a
      where a.pid = i.marked_pid and a.backend_start = i.marked_backend_start and a.pid <> excluded.marked_pid
  )
returning tenant, key
