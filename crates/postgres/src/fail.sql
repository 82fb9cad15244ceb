-- Records failed runs: rows claimed in this transaction, or (alone, after a rollback) rows that may not exist yet.
-- Without a claim of its own, changes only a key that may run again, never one that took effect, was given up or runs
-- under leases, and counts an attempt once: another copy may have failed at the same time, and recorded it. Avoids ON
-- CONFLICT DO UPDATE: on an existing final row, row-level security raises an error for that, and skips an UPDATE.
with failed as materialized (
    select f.*
    from unnest($3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::text[], $9::text[], $11::timestamptz[], $12::text[])
        as f (tenant, key, status, attempts, fingerprint, reason, last_error, not_before, error_code)
), open as materialized (
    select f.*
    from failed as f
    join oncely.idempotency_keys as i on i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
    where (i.status = 'IN_PROGRESS' and i.attempts < f.attempts and i.fencing_token is null) or $10
    order by i.tenant, i.key
    for update of i
), changed as (
    update oncely.idempotency_keys as i
    set status = f.status::oncely.key_status,
        attempts = f.attempts,
        completed_at = case when f.status = 'FAILED' then $2::timestamptz end,
        fingerprint = f.fingerprint,
        reason = f.reason,
        last_error = f.last_error,
        not_before = f.not_before,
        -- A failure that is not attributed to the message keeps the previous code.
        error_code = coalesce(f.error_code, i.error_code),
        expires_at = null,
        -- The process is alive: it reports this failure.
        crash_attempts = case when f.status = 'FAILED' then i.crash_attempts else 0 end,
        marked_pid = null,
        marked_backend_start = null
    from open as f
    where i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
    returning i.key
), written as (
    insert into oncely.idempotency_keys
        (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error, not_before, error_code)
    select f.tenant, $1, f.key, f.status::oncely.key_status, f.attempts, $2, case when f.status = 'FAILED' then $2::timestamptz end,
        f.fingerprint, f.reason, f.last_error, f.not_before, f.error_code
    from failed as f
    where not exists (
        select from oncely.idempotency_keys as i where i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
    )
    order by f.tenant collate "C", f.key collate "C"
    on conflict (tenant, consumer, key) do nothing
    returning key
)
select key as "key!" from changed union all select key from written
