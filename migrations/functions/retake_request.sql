-- Claims a request's key after failed runs as a message, unless it has to wait until after due; returns true if it may
-- run in this transaction. Rechecks the row after a lock wait (EvalPlanQual): a transaction that completed or put off
-- the key meanwhile keeps it. Skips a key that runs under leases: external calls of such a run may have happened. Does
-- not compare the status: that would match a partial index, which is long, and the primary key finds one row. Status,
-- settings and lock waits as in oncely.claim_request.
create or replace function oncely.retake_request(
    tenant text, consumer text, key text, at timestamptz, fingerprint bytea, due timestamptz
) returns boolean
language plpgsql
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_column
begin
    update oncely.idempotency_keys as i
    set status = 'FAILED', attempts = i.attempts + 1, completed_at = retake_request.at,
        fingerprint = retake_request.fingerprint, reason = 'outcome_unknown',
        last_error = 'a handler has ended the transaction of its request itself',
        -- A client of oncely.claim may have failed at it: from now on the consumer's retention applies.
        expires_at = null, not_before = null, marked_pid = null, marked_backend_start = null
    where i.tenant = retake_request.tenant and i.consumer = retake_request.consumer and i.key = retake_request.key
        and i.completed_at is null and i.fencing_token is null
        and (i.not_before is null or i.not_before <= retake_request.due);
    if not found then
        return false;
    end if;
    perform set_config('idle_in_transaction_session_timeout', '2min', true),
        set_config('oncely.handler_role', current_setting('role'), true);
    return true;
end
$$;
comment on function oncely.retake_request is
    'Claims the key of a request that has failed as a message. For the HTTP door.';
revoke execute on function oncely.retake_request from public;
