-- Counts a first run after a redelivery, of keys without a row. Waits for a session that is inserting one of the keys,
-- and leaves it to mark_suspects.sql, which sees that session's row then. Avoids ON CONFLICT DO UPDATE: see
-- fail_new.sql.
insert into oncely.idempotency_keys
    (tenant, consumer, key, status, attempts, crash_attempts, created_at, fingerprint, marked_pid, marked_backend_start)
select k.tenant, $1, k.key, 'IN_PROGRESS', 0, 1, $2, k.fingerprint, $6, $7
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
on conflict (tenant, consumer, key) do nothing
returning tenant, key
