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
    delay interval default null,
    body bytea default null,
    properties json default null,
    headers json default null,
    exchange text default '',
    routing_key text default '',
    out outcome text,
    out attempts integer,
    out final_reason text,
    out stored boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    known record;
    print bytea := oncely.stored_fingerprint(fingerprint);
    -- Cut to the length that people read.
    detail text := left(error, 8000);
    ends timestamptz;
    again timestamptz;
    class text := oncely.error_class(coalesce(error_code, ''));
    why text := coalesce(reason, nullif(nullif(class, 'transient'), 'environment'));
    given_up boolean := why is not null or attempt >= max_attempts;
    is_charged boolean := false;
begin
    stored := false;
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    if attempt is null or attempt not between 0 and 10000
        or max_attempts is null or max_attempts not between 1 and 10000
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: attempt is the number that oncely.claim gave, max_attempts is 1 to 10000';
    end if;
    perform oncely.check_failure(reason, array['handler_rejected', 'poison', 'invalid_json', 'crash'], error_code);
    perform oncely.check_short(queue, worker, trace_id);
    if body is not null then
        perform oncely.check_message(queue, exchange, routing_key, properties, headers);
    end if;
    if delay is not null then
        delay := oncely.checked_time('delay', delay, interval '0', interval '366 days');
    end if;
    perform oncely.check_right('consume', consumer, tenant);
    ends := clock_timestamp() + oncely.claimed_retention(tenant, retention);
    again := at + delay;
    for round in 1..8 loop
        select i.status, i.fingerprint, i.attempts, i.reason, i.last_error, i.claimed_in,
            i.fencing_token is not null as is_leased, i.not_before
        into known
        from oncely.idempotency_keys as i
        where i.tenant = tenant and i.consumer = consumer and i.key = key
        for update;
        if not found then
            insert into oncely.idempotency_keys (
                tenant, consumer, key, status, attempts, created_at, fingerprint, expires_at
            )
            values (tenant, consumer, key, 'IN_PROGRESS', 0, at, print, ends)
            on conflict on constraint idempotency_keys_pkey do nothing;
            continue;
        end if;
        if known.claimed_in = own and known.reason = 'incomplete_claim' then
            -- Claimed in this transaction, with its work rolled back to a savepoint: the claim is given back in any
            -- case.
            update oncely.idempotency_keys as i
            set status = 'IN_PROGRESS', attempts = i.attempts - 1, completed_at = null, reason = null,
                last_error = null, claimed_in = null
            where i.tenant = tenant and i.consumer = consumer and i.key = key;
            known.status := 'IN_PROGRESS';
            known.attempts := known.attempts - 1;
        end if;
        outcome := case
            when known.fingerprint is not null and print is null and on_conflict = 'dead_letter' then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, known.is_leased, on_conflict)
        end;
        attempts := known.attempts;
        exit;
    end loop;
    if outcome is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be looked at',
            hint = 'Try again.';
    end if;
    case outcome
        when 'duplicate' then
            perform oncely.await_standby();
            return;
        when 'conflict' then
            final_reason := 'key_conflict';
            detail := 'this key came before with another payload';
        when 'given_up' then
            final_reason := known.reason;
            detail := concat_ws(': ', 'given up before', known.last_error);
        when 'leased' then
            -- The run under a lease reports the outcome, as long as it exists.
            if known.not_before > at then
                outcome := 'retry';
                return;
            end if;
            outcome := 'given_up';
            final_reason := 'outcome_unknown';
            detail := 'runs under leases (oncely.claim_lease) began this message: it runs under one only';
        when 'retake' then
            is_charged := true;
            outcome := case when given_up then 'given_up' else 'retry' end;
            -- Not the message's fault; or recorded already, by an earlier call with a lost reply. A recorded final
            -- verdict reads as given up: a final verdict that meets such a count comes after the attempt of a copy.
            if (known.attempts >= attempt and not given_up) or (class = 'environment' and reason is null) then
                outcome := 'retry';
                return;
            end if;
            attempts := case when attempt > 0 then greatest(known.attempts + 1, attempt) else known.attempts end;
            final_reason := case when given_up then coalesce(why, 'attempts_exhausted') end;
            update oncely.idempotency_keys as i
            set status = case when given_up then 'FAILED' else 'IN_PROGRESS' end::oncely.key_status,
                attempts = fail.attempts, completed_at = case when given_up then at end, reason = final_reason,
                last_error = detail, claimed_in = null, fingerprint = coalesce(print, i.fingerprint),
                not_before = case when not given_up then again end, expires_at = ends,
                -- The process is alive: it reports this failure.
                crash_attempts = case when given_up then i.crash_attempts else 0 end,
                marked_pid = null, marked_backend_start = null
            where i.tenant = tenant and i.consumer = consumer and i.key = key;
    end case;
    perform oncely.record_decision(
        tenant, consumer, key, case when outcome = 'retry' then 'retried' else 'dead_lettered' end, at,
        -- A final verdict after a copy's attempt is the next attempt, as in the row.
        case when is_charged and outcome = 'given_up' and attempt > 0 then attempts else attempt end,
        queue, worker, trace_id, reason => final_reason, error_code => error_code, detail => detail
    );
    if outcome <> 'retry' then
        stored := body is not null and oncely.store_letter(
            tenant, consumer, key, print, final_reason, error_code, detail,
            case when is_charged then attempts else 0 end, at, queue, oncely.worker_name(worker), trace_id, body,
            properties, headers, exchange, routing_key
        );
    end if;
end
$$;
comment on function oncely.fail is
    'Records that a message failed, after its work was rolled back: retry (with delay: not before it is over), or '
    'given_up or conflict (acknowledge it where stored, by its body, else dead-letter it), or duplicate (acknowledge '
    'it); reserved: elsewhere (not in this cell: requeue it). ONC16: no right. Protocol version 1.';
revoke execute on function oncely.fail from public;
