-- Claims keys with failed earlier runs: each returned row may run in this transaction. Does not return a key that
-- another worker has just completed, or failed and put off: EvalPlanQual rechecks the row after the wait for that
-- worker's lock. Does not return a key that runs under leases: external calls of such a run may have happened.
with failed as materialized (
    select i.tenant, i.key, k.fingerprint
    from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
    join oncely.idempotency_keys as i on i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
    where oncely.in_group(i.tenant, $3) and i.status = 'IN_PROGRESS' and i.fencing_token is null
        and (i.not_before is null or i.not_before <= $6)
    order by i.tenant, i.key
    for update of i
)
update oncely.idempotency_keys as i
set status = 'COMPLETED', attempts = i.attempts + 1, completed_at = $2, fingerprint = f.fingerprint, last_error = null,
    -- A client of oncely.claim may have failed at it: from now on the worker's retention applies.
    expires_at = null, not_before = null, marked_pid = null, marked_backend_start = null
from failed as f
where oncely.in_group(i.tenant, $3) and i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
    and i.status = 'IN_PROGRESS' and i.fencing_token is null
returning i.tenant, i.key, i.attempts
