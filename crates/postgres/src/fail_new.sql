-- Records failed runs of keys without a row, after a rollback. Leaves existing keys to fail.sql. Avoids ON CONFLICT DO
-- UPDATE: on an existing final row, row-level security raises an error for that, and skips an UPDATE.
insert into oncely.idempotency_keys
    (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error, not_before, error_code)
select f.tenant, $1, f.key, f.status::oncely.key_status, f.attempts, $2, case when f.status = 'FAILED' then $2::timestamptz end,
    f.fingerprint, f.reason, f.last_error, f.not_before, f.error_code
from unnest($3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::text[], $9::text[], $10::timestamptz[], $11::text[])
    as f (tenant, key, status, attempts, fingerprint, reason, last_error, not_before, error_code)
order by f.tenant collate "C", f.key collate "C"
on conflict (tenant, consumer, key) do nothing
