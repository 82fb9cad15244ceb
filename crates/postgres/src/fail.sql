-- Records failed runs of keys that exist: claimed in this transaction ($10), or open. Without a claim of its own,
-- changes only a key that may run again, never one that took effect, was given up or runs under leases, and counts an
-- attempt once: another copy may have failed at the same time, and recorded it.
with failed as materialized (
    select f.tenant, f.key, f.status::oncely.key_status as status, f.attempts, f.fingerprint, f.reason, f.last_error,
        f.not_before, f.error_code
    from unnest($3::text[], $4::text[], $5::text[], $6::integer[], $7::bytea[], $8::text[], $9::text[], $11::timestamptz[], $12::text[])
        as f (tenant, key, status, attempts, fingerprint, reason, last_error, not_before, error_code)
), open as materialized (
    select f.*
    from failed as f
    join oncely.idempotency_keys as i on i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
    where oncely.in_group(i.tenant, $3)
        and ((i.status = 'IN_PROGRESS' and i.attempts < f.attempts and i.fencing_token is null) or $10)
    order by i.tenant, i.key
    for update of i
)
update oncely.idempotency_keys as i
set status = f.status,
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
where oncely.in_group(i.tenant, $3) and i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
