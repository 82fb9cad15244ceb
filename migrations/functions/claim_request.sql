-- Claims a request's key unless it has a row; otherwise returns the key's state and stored answer. Looks first: a
-- known key is not waited for, whatever a transaction does with its row. Returns neither if another transaction was
-- faster and its row is gone again: then the caller repeats the call. Inserts a claim as FAILED with the reason
-- outcome_unknown; the answer changes it to COMPLETED (pg::store_http_answer) in the same transaction. So FAILED
-- becomes visible only if the handler, which is foreign code, commits in between; then it is the key's true state.
-- Its lock waits are short, also for a lock of the whole table; those after it are the session's.
create or replace function oncely.claim_request(
    tenant text, consumer text, key text, at timestamptz, fingerprint bytea,
    out is_claimed boolean, out status text, out known_fingerprint bytea, out attempts integer,
    out crash_attempts integer, out reason text, out last_error text, out error_code text, out not_before timestamptz,
    out is_leased boolean, out is_running boolean, out http_status smallint, out http_headers jsonb,
    out http_body bytea, out response text
)
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
begin
    is_claimed := false;
    for attempt in 1..2 loop
        select k.status::text, k.fingerprint, k.attempts, k.crash_attempts, k.reason, k.last_error, k.error_code,
            k.not_before, k.fencing_token is not null,
            -- Whether another session serves the counted run; checked only for keys that are marked.
            case when k.marked_pid <> pg_backend_pid()
            then oncely.is_at_work(k.marked_pid, k.marked_backend_start) end,
            k.http_status, k.http_headers, k.http_body, k.response::text
        into status, known_fingerprint, attempts, crash_attempts, reason, last_error, error_code, not_before,
            is_leased, is_running, http_status, http_headers, http_body, response
        from oncely.idempotency_keys as k
        where k.tenant = claim_request.tenant and k.consumer = claim_request.consumer and k.key = claim_request.key;
        if found or attempt = 2 then
            exit;
        end if;
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, last_error
        )
        values (
            claim_request.tenant, claim_request.consumer, claim_request.key, 'FAILED', 1, claim_request.at,
            claim_request.at, claim_request.fingerprint, 'outcome_unknown',
            'a handler has ended the transaction of its request itself'
        )
        on conflict on constraint idempotency_keys_pkey do nothing;
        if found then
            is_claimed := true;
            -- Limits how long a process that hangs in the transaction holds its key: twice the longest limit of a
            -- handler.
            perform set_config('idle_in_transaction_session_timeout', '2min', true),
                -- Used by pg::leave_request to detect that a handler has ended the transaction.
                set_config('oncely.handler_role', current_setting('role'), true);
            return;
        end if;
    end loop;
    -- A failover would lose a row that a standby lacks, and rerun it: COMMIT waits for the standby
    -- (pg::wait_for_standby).
    if status = 'COMPLETED' and current_setting('synchronous_standby_names') <> '' then
        perform pg_logical_emit_message(true, 'oncely', '');
    end if;
end
$$;
comment on function oncely.claim_request is 'Claims the key of a request. For the HTTP door.';
revoke execute on function oncely.claim_request from public;
