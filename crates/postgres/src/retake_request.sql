-- Claims a request's key after failed runs as a message: if a row is returned, it may run in this transaction. Rechecks
-- the row after a lock wait (EvalPlanQual): a transaction that completed or put off the key meanwhile keeps it. Skips a
-- key that runs under leases: external calls of such a run may have happened. Does not compare the status: that would
-- match a partial index, which is long, and the primary key finds one row. Runs in an application's session with any
-- search_path: each name is qualified. Status and settings as in claim_request.sql.
with settings as materialized (
    select pg_catalog.set_config('idle_in_transaction_session_timeout', '2min', true) as rests,
        pg_catalog.set_config('oncely.handler_role', pg_catalog.current_setting('role'), true) as role
),
retaken as (
    update oncely.idempotency_keys as i
    set status = 'FAILED', attempts = i.attempts operator(pg_catalog.+) 1, completed_at = $4, fingerprint = $5,
        reason = 'outcome_unknown', last_error = 'a handler has ended the transaction of its request itself',
        -- A client of oncely.claim may have failed at it: from now on the consumer's retention applies.
        expires_at = null, not_before = null, marked_pid = null, marked_backend_start = null
    from settings
    where i.tenant operator(pg_catalog.=) $1 and i.consumer operator(pg_catalog.=) $2 and i.key operator(pg_catalog.=) $3
        and i.completed_at is null and i.fencing_token is null
        and (i.not_before is null or i.not_before operator(pg_catalog.<=) $6)
    returning i.key
)
select r.key is not null as "is_claimed!",
    case when r.key is not null
    then pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('oncely.handler_lock_timeout'), true) end as lock_timeout
from settings as s
left join retaken as r on true
