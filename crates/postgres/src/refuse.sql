-- Records refusals by handlers as answers, for keys that exist: claimed in this transaction ($8), or open. Without a
-- claim of its own, changes only a key that may run again.
with refused as materialized (
    select r.tenant, r.key, r.attempts, r.fingerprint, jsonb_build_object('refused', r.why) as response
    from unnest($3::text[], $4::text[], $5::integer[], $6::bytea[], $7::text[]) as r (tenant, key, attempts, fingerprint, why)
), open as materialized (
    select r.*
    from refused as r
    join oncely.idempotency_keys as i on i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
    where oncely.in_group(i.tenant, $3) and ((i.status = 'IN_PROGRESS' and i.fencing_token is null) or $8)
    order by i.tenant, i.key
    for update of i
)
update oncely.idempotency_keys as i
set status = 'COMPLETED',
    attempts = r.attempts,
    completed_at = $2,
    fingerprint = r.fingerprint,
    reason = 'refused',
    response = r.response,
    last_error = null,
    expires_at = null,
    not_before = null,
    crash_attempts = 0,
    marked_pid = null,
    marked_backend_start = null
from open as r
where oncely.in_group(i.tenant, $3) and i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
