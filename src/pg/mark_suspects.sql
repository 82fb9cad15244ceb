-- Counts a run that begins after a redelivery, before it begins. Only keys that may run: not one that took effect or was
-- given up, and not another payload's.
insert into oncely.idempotency_keys as i
    (tenant, consumer, key, status, attempts, crash_attempts, created_at, fingerprint)
select k.tenant, $1, k.key, 'IN_PROGRESS', 0, 1, $2, k.fingerprint
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
on conflict (tenant, consumer, key) do update
set crash_attempts = i.crash_attempts + 1
where i.status = 'IN_PROGRESS'
  and ($6 or i.fingerprint is null or excluded.fingerprint is null or oncely.same_payload(i.fingerprint, excluded.fingerprint))
returning tenant, key
