-- What is known of a request's key, and what it was answered with; unless somebody has it, it is claimed. In one round trip: most requests
-- are the first of their keys, and of the others most come after the first has ended. Whoever loses a race sees neither its own row nor the
-- winner's, whose commit is younger than this statement's snapshot: then nothing is known, and it is said again.
-- A claim is born as FAILED with the reason outcome_unknown, and the answer makes it COMPLETED (http_store.sql): both are in one transaction, so
-- nobody sees the first, unless the handler, whose code is not ours, has committed in between. Then that is what is true of the key.
-- In an application's session, whose search_path may be anything: each name says where it is.
with known as materialized (
    select i.* from oncely.idempotency_keys as i
    where i.tenant operator(pg_catalog.=) $1 and i.consumer operator(pg_catalog.=) $2 and i.key operator(pg_catalog.=) $3
),
settings as materialized (
    select
        -- A process that stands still in the transaction holds its key no longer, twice the longest limit of a handler.
        pg_catalog.set_config('idle_in_transaction_session_timeout', '2min', true) as rests,
        -- For pg::leave_request, which notices by it that a handler has ended the transaction.
        pg_catalog.set_config('oncely.handler_role', pg_catalog.current_setting('role'), true) as role
    where not exists (select from known)
),
claimed as (
    insert into oncely.idempotency_keys (
        tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error
    )
    select $1, $2, $3, 'FAILED', 1, $4, $4, $5, 'outcome_unknown',
        'a handler has ended the transaction of its request itself'
    from settings
    on conflict (tenant, consumer, key) do nothing
    returning key
)
select c.key is not null as "is_claimed!",
    -- Again the handler's (see pg::begin_request).
    case when c.key is not null
    then pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('oncely.handler_lock_timeout'), true) end as lock_timeout,
    k.status::pg_catalog.text as "status?", k.fingerprint as "fingerprint?", k.attempts as "attempts?",
    k.crash_attempts as "crash_attempts?", k.reason as "reason?", k.last_error as "last_error?", k.error_code as "error_code?",
    k.not_before as "not_before?", k.fencing_token is not null as "is_leased!",
    -- By another session than the one that asks. Only asked for keys that are marked.
    case when k.marked_pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid()
    then oncely.is_at_work(k.marked_pid, k.marked_backend_start) end as is_running,
    k.http_status as "http_status?", k.http_headers as "http_headers?", k.http_body as "http_body?",
    k.response::pg_catalog.text as "response?",
    -- What a standby lacks would be lost by a failover, and run again: COMMIT waits for it (see pg::await_standby).
    case when k.status operator(pg_catalog.=) 'COMPLETED'
        and pg_catalog.current_setting('synchronous_standby_names') operator(pg_catalog.<>) ''
    then pg_catalog.pg_logical_emit_message(true, 'oncely', '')::pg_catalog.text end as awaited
from (values (1)) as one (request)
left join known as k on true
left join settings as s on true
left join claimed as c on true
