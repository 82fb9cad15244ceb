-- Claims a request's key whose earlier runs, as a message, failed: if a row is returned, it may run in this transaction. Checked again behind
-- a lock wait (EvalPlanQual): whoever completed it, or put it off, meanwhile keeps it. Not one that runs under leases: what such a run has
-- called outside may have happened. Not by status: that would suit a partial index, which is long, and the primary key finds one row.
-- In an application's session, whose search_path may be anything: each name says where it is. Status and settings as in claim_request.sql.
with settings as materialized (
    select pg_catalog.set_config('idle_in_transaction_session_timeout', '2min', true) as rests,
        pg_catalog.set_config('oncely.handler_role', pg_catalog.current_setting('role'), true) as role
),
retaken as (
    update oncely.idempotency_keys as i
    set status = 'FAILED', attempts = i.attempts operator(pg_catalog.+) 1, completed_at = $4, fingerprint = $5,
        reason = 'outcome_unknown', last_error = 'a handler has ended the transaction of its request itself',
        -- A client of oncely.claim may have failed at it: from now on the consumer's retention counts.
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
