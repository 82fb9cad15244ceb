create or replace function oncely.fail_lease(
    tenant text,
    consumer text,
    key text,
    token bigint,
    error text,
    reason text default null,
    error_code text default null,
    max_attempts integer default 6,
    delay interval default null,
    queue text default '',
    worker text default null,
    trace_id text default null,
    charged boolean default false,
    out outcome text,
    out attempts integer,
    out final_reason text
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    at timestamptz;
    due timestamptz;
    ends timestamptz;
    detail text := left(error, 8000);
    class text := oncely.error_class(coalesce(error_code, ''));
    why text := coalesce(reason, nullif(nullif(class, 'transient'), 'environment'));
begin
    if max_attempts is null or max_attempts not between 1 and 10000 then
        raise exception using errcode = 'ONC11', message = 'oncely: max_attempts is 1 to 10000';
    end if;
    perform oncely.check_failure(
        reason, array['handler_rejected', 'poison', 'invalid_json', 'outcome_unknown'], error_code
    );
    perform oncely.check_short(queue, worker, trace_id);
    if delay is not null then
        delay := oncely.checked_time('delay', delay, interval '0', interval '366 days');
    end if;
    held := oncely.hold_lease(tenant, consumer, key, token);
    at := clock_timestamp();
    attempts := coalesce(held.attempts, 0);
    if not oncely.is_held(held.owner, held.fencing_token, token) then
        if held.fencing_token = token then
            -- The caller repeats the call after a lost reply; or this very run gave the key back or completed it.
            perform oncely.await_standby();
            outcome := case held.status
                when 'COMPLETED' then 'duplicate' when 'FAILED' then 'given_up' else 'retry'
            end;
            final_reason := case when held.status = 'FAILED' then held.reason end;
            return;
        end if;
        outcome := 'lost';
        -- Recorded only for a lease that existed, so that no client fills the trail with others.
        if held.fencing_token > token then
            perform oncely.record_decision(
                tenant, consumer, key, 'fenced', at, 0, queue, worker, trace_id,
                detail => concat_ws(': ', format('lost the lease %s', token), detail)
            );
        end if;
        return;
    end if;
    if class = 'environment' and reason is null and not coalesce(charged, false) then
        outcome := 'retry';
    else
        attempts := attempts + 1;
        outcome := case when why is not null or attempts >= max_attempts then 'given_up' else 'retry' end;
        final_reason := case when outcome = 'given_up' then coalesce(why, 'attempts_exhausted') end;
    end if;
    -- The retention starts again when the key may run, also without a delay.
    due := at + coalesce(delay, '0');
    ends := oncely.bounded(due + oncely.lease_retention(held.expires_at, held.fencing_token));
    if outcome = 'given_up' then
        update oncely.idempotency_keys as i
        set status = 'FAILED', attempts = fail_lease.attempts, completed_at = at, reason = final_reason,
            last_error = detail, owner = null, run_ends_at = null, not_before = null, expires_at = ends
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
    else
        update oncely.idempotency_keys as i
        set attempts = fail_lease.attempts, completed_at = null, reason = null, last_error = detail, owner = null,
            run_ends_at = null, not_before = due, expires_at = ends,
            -- The process is alive: it reports this failure.
            crash_attempts = 0
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
    end if;
    perform oncely.record_decision(
        tenant, consumer, key, case when outcome = 'retry' then 'retried' else 'dead_lettered' end, at, attempts,
        queue, worker, trace_id, greatest(extract(epoch from at) * 1000000 - token, 0), final_reason, error_code, detail
    );
end
$$;
comment on function oncely.fail_lease is
    'Ends a run that failed: retry (with delay: not before it is over) or given_up (dead-letter it). lost: another run '
    'has the key, or none has, and the trail says fenced: requeue the delivery, its next claim tells. duplicate: it '
    'was completed. What steps began or did stays. charged: an error_code of the environment (a missing table, no '
    'right) spends an attempt, too: others succeed meanwhile. Lease protocol version 1.';
revoke execute on function oncely.fail_lease from public;
