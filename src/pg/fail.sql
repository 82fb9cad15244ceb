-- Records failed runs: rows claimed in this transaction, or (alone, after a rollback) rows that may not be there yet.
-- Without a claim of its own it touches only a key that may run again, never one that took effect or was given up, and counts an
-- attempt once: another copy may have failed at the same time, and have recorded it.
insert into oncely.idempotency_keys as i
    (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error, not_before, error_code)
select f.tenant, $1, f.key, f.status::oncely.key_status, f.attempts, $2, case when f.status = 'FAILED' then $2::timestamptz end,
    f.fingerprint, f.reason, f.last_error, f.not_before, f.error_code
from unnest($3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::text[], $9::text[], $11::timestamptz[], $12::text[])
    as f (tenant, key, status, attempts, fingerprint, reason, last_error, not_before, error_code)
order by f.tenant collate "C", f.key collate "C"
on conflict (tenant, consumer, key) do update
set status = excluded.status,
    attempts = excluded.attempts,
    completed_at = excluded.completed_at,
    fingerprint = excluded.fingerprint,
    reason = excluded.reason,
    last_error = excluded.last_error,
    not_before = excluded.not_before,
    -- Left undecided, it has answered for nothing new.
    error_code = coalesce(excluded.error_code, i.error_code),
    expires_at = null,
    -- The process lives: it reports this failure.
    crash_attempts = case when excluded.status = 'FAILED' then i.crash_attempts else 0 end,
    marked_pid = null,
    marked_backend_start = null
where (i.status = 'IN_PROGRESS' and i.attempts < excluded.attempts) or $10
