create or replace function oncely.fail(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    attempt integer,
    error text,
    reason text default null,
    error_code text default null,
    max_attempts integer default 6,
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    queue text default '',
    worker text default null,
    trace_id text default null,
    out outcome text,
    out attempts integer,
    out final_reason text
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    known record;
    detail text := fail.error;
    class text := oncely.error_class(coalesce(fail.error_code, ''));
    why text := coalesce(fail.reason, nullif(nullif(class, 'transient'), 'environment'));
    given_up boolean := why is not null or fail.attempt >= fail.max_attempts;
begin
    perform oncely.check_call(fail.tenant, fail.consumer, fail.key, fail.fingerprint, fail.retention, fail.on_conflict);
    if fail.attempt is null or fail.attempt < 0 or fail.max_attempts is null or fail.max_attempts < 1 then
        raise exception using errcode = 'ONC11', message = 'oncely: attempt is the number that oncely.claim gave, max_attempts is 1 or more';
    end if;
    if fail.reason not in ('handler_rejected', 'poison', 'invalid_json', 'crash') then
        raise exception using errcode = 'ONC11', message = 'oncely: reason is neither handler_rejected, poison, invalid_json nor crash',
            hint = 'Null where error_code decides, or the message may run again until max_attempts.';
    end if;
    for round in 1..8 loop
        select i.status, i.fingerprint, i.attempts, i.reason, i.last_error, i.fencing_token into known
        from oncely.idempotency_keys as i
        where i.tenant = fail.tenant and i.consumer = fail.consumer and i.key = fail.key
        for update;
        if not found then
            insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, fingerprint, expires_at)
            values (fail.tenant, fail.consumer, fail.key, 'IN_PROGRESS', 0, at, fail.fingerprint, at + fail.retention)
            on conflict (tenant, consumer, key) do nothing;
            continue;
        end if;
        if known.fencing_token = own and known.reason = 'incomplete_claim' then
            -- Claimed in this transaction, whose work was rolled back to a savepoint: the claim is given back, whatever follows.
            update oncely.idempotency_keys as i
            set status = 'IN_PROGRESS', attempts = i.attempts - 1, completed_at = null, reason = null, last_error = null, fencing_token = null
            where i.tenant = fail.tenant and i.consumer = fail.consumer and i.key = fail.key;
            known.status := 'IN_PROGRESS';
            known.attempts := known.attempts - 1;
        end if;
        outcome := oncely.decide(known.status, known.fingerprint, fail.fingerprint, fail.on_conflict);
        attempts := known.attempts;
        exit;
    end loop;
    if outcome is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be looked at', hint = 'Try again.';
    end if;
    case outcome
        when 'duplicate' then
            perform oncely.await_standby();
            return;
        when 'conflict' then
            final_reason := 'key_conflict';
            detail := 'this key came before with another payload';
        when 'refused' then
            final_reason := known.reason;
            detail := concat_ws(': ', 'given up before', known.last_error);
        when 'retake' then
            outcome := case when given_up then 'given_up' else 'retry' end;
            -- Not the message's fault; or recorded already, by an earlier call whose reply was lost.
            if known.attempts >= fail.attempt or (class = 'environment' and fail.reason is null) then
                outcome := 'retry';
                return;
            end if;
            attempts := fail.attempt;
            final_reason := case when given_up then coalesce(why, 'attempts_exhausted') end;
            update oncely.idempotency_keys as i
            set status = case when given_up then 'FAILED' else 'IN_PROGRESS' end, attempts = fail.attempt,
                completed_at = case when given_up then at end, reason = final_reason, last_error = fail.error, fencing_token = null,
                fingerprint = fail.fingerprint, expires_at = at + fail.retention,
                -- The process lives: it reports this failure.
                crash_attempts = case when given_up then i.crash_attempts else 0 end
            where i.tenant = fail.tenant and i.consumer = fail.consumer and i.key = fail.key;
    end case;
    insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, error_code, detail, worker, trace_id)
    values (
        fail.tenant, at, fail.attempt, fail.consumer, fail.key, coalesce(fail.queue, ''),
        case when outcome = 'retry' then 'retried' else 'dead_lettered' end, final_reason, fail.error_code, detail,
        oncely.worker_name(fail.worker), fail.trace_id
    );
end
$$;
