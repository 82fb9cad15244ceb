-- Records refusals by handlers as answers: rows claimed in this transaction, or (alone, after a rollback) rows that may
-- not exist yet. Without a claim of its own, changes only a key that may run again. Avoids ON CONFLICT DO UPDATE: see
-- fail.sql.
with refused as materialized (
    select r.*
    from unnest($3::text[], $4::text[], $5::integer[], $6::bytea[], $7::text[]) as r (tenant, key, attempts, fingerprint, why)
), open as materialized (
    select r.*
    from refused as r
    join oncely.idempotency_keys as i on i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
    where (i.status = 'IN_PROGRESS' and i.fencing_token is null) or $8
    order by i.tenant, i.key
    for update of i
), changed as (
    update oncely.idempotency_keys as i
    set status = 'COMPLETED',
        attempts = r.attempts,
        completed_at = $2,
        fingerprint = r.fingerprint,
        reason = 'refused',
        response = jsonb_build_object('refused', r.why),
        last_error = null,
        expires_at = null,
        not_before = null,
        crash_attempts = 0,
        marked_pid = null,
        marked_backend_start = null
    from open as r
    where i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
    returning i.key
), written as (
    insert into oncely.idempotency_keys
        (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, response)
    select r.tenant, $1, r.key, 'COMPLETED', r.attempts, $2, $2, r.fingerprint, 'refused', jsonb_build_object('refused', r.why)
    from refused as r
    where not exists (
        select from oncely.idempotency_keys as i where i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
    )
    order by r.tenant collate "C", r.key collate "C"
    on conflict (tenant, consumer, key) do nothing
    returning key
)
select key as "key!" from changed union all select key from written
