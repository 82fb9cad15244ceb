-- Claims a request's key unless it has a row; otherwise returns the key's state and stored answer. Takes one round
-- trip: most requests are the first of their keys, and most others arrive after the first has ended. The loser of a
-- race sees neither its own row nor the winner's, because that commit is younger than this statement's snapshot: then
-- nothing is returned about the key, and the caller repeats the statement. Inserts a claim as FAILED with the reason
-- outcome_unknown; the answer changes it to COMPLETED (http_store.sql) in the same transaction. So FAILED becomes
-- visible only if the handler, which is foreign code, commits in between; then it is the key's true state. Runs in an
-- application's session with any search_path: each name is qualified.
with known as materialized (
    select i.* from oncely.idempotency_keys as i
    where i.tenant operator(pg_catalog.=) $1 and i.consumer operator(pg_catalog.=) $2 and i.key operator(pg_catalog.=) $3
),
settings as materialized (
    select
        -- Limits how long a process that hangs in the transaction holds its key: twice the longest limit of a handler.
        pg_catalog.set_config('idle_in_transaction_session_timeout', '2min', true) as rests,
        -- Used by pg::leave_request to detect that a handler has ended the transaction.
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
    -- Restores the handler's lock_timeout (pg::begin_request).
    case when c.key is not null
    then pg_catalog.set_config('lock_timeout', pg_catalog.current_setting('oncely.handler_lock_timeout'), true) end as lock_timeout,
    k.status::pg_catalog.text as "status?", k.fingerprint as "fingerprint?", k.attempts as "attempts?",
    k.crash_attempts as "crash_attempts?", k.reason as "reason?", k.last_error as "last_error?", k.error_code as "error_code?",
    k.not_before as "not_before?", k.fencing_token is not null as "is_leased!",
    -- Whether another session serves the counted run; checked only for keys that are marked.
    case when k.marked_pid operator(pg_catalog.<>) pg_catalog.pg_backend_pid()
    then oncely.is_at_work(k.marked_pid, k.marked_backend_start) end as is_running,
    k.http_status as "http_status?", k.http_headers as "http_headers?", k.http_body as "http_body?",
    k.response::pg_catalog.text as "response?",
    -- A failover would lose a row that a standby lacks, and rerun it: COMMIT waits for the standby (pg::await_standby).
    case when k.status operator(pg_catalog.=) 'COMPLETED'
        and pg_catalog.current_setting('synchronous_standby_names') operator(pg_catalog.<>) ''
    then pg_catalog.pg_logical_emit_message(true, 'oncely', '')::pg_catalog.text end as awaited
from (values (1)) as one (request)
left join known as k on true
left join settings as s on true
left join claimed as c on true
