create or replace function oncely.claim(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    out outcome text,
    out attempt integer,
    out response jsonb,
    out reason text,
    out detail text,
    out delay interval
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    ends timestamptz;
    -- A copy may come slightly early.
    due timestamptz;
    decision text;
    incomplete text := 'the transaction that claimed this key was committed without oncely.complete: whether it took '
        'effect is not known';
    known record;
    print bytea := oncely.stored_fingerprint(fingerprint);
begin
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    perform oncely.check_right('consume', consumer, tenant);
    ends := clock_timestamp() + oncely.claimed_retention(tenant, retention);
    attempt := 0;
    for round in 1..8 loop
        -- Waits for the session that holds the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, claimed_in, reason,
            last_error, expires_at
        )
        values (tenant, consumer, key, 'FAILED', 1, at, at, print, own, 'incomplete_claim', incomplete, ends)
        on conflict on constraint idempotency_keys_pkey do nothing;
        if found then
            outcome := 'granted';
            attempt := 1;
            perform oncely.note_claim(tenant);
            return;
        end if;
        -- A separate statement, with a snapshot of its own, sees the winner's row.
        select i.status, i.fingerprint, i.reason, i.last_error, i.response, i.claimed_in, i.not_before,
            i.fencing_token is not null as is_leased
        into known
        from oncely.idempotency_keys as i
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        -- Neither claimed nor found: the key was collected in between.
        continue when not found;
        if known.claimed_in = own and known.reason = 'incomplete_claim' then
            raise exception using errcode = 'ONC13', message = 'oncely: this transaction has claimed the key already',
                hint = 'Complete a key before the next message with the same key is claimed.';
        end if;
        -- A caller without a fingerprint does not prove that it knows the payload: a key stored with a fingerprint is
        -- not granted to it, nor is its response returned.
        decision := case
            when known.fingerprint is not null and print is null and on_conflict = 'dead_letter'
                then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, known.is_leased, on_conflict)
        end;
        case decision
            when 'conflict' then
                outcome := 'conflict';
                reason := 'key_conflict';
                detail := 'this key came before with another payload';
                return;
            when 'duplicate' then
                perform oncely.await_standby();
                outcome := 'duplicate';
                -- For a claimant with a fingerprint: of this payload, or of another if on_conflict = duplicate.
                if known.fingerprint is null or print is not null then
                    response := known.response;
                end if;
                return;
            when 'given_up' then
                outcome := 'given_up';
                reason := known.reason;
                detail := concat_ws(': ', 'given up before', known.last_error);
                return;
            when 'leased' then
                -- External calls of a run under a lease may have happened, and this claim does not know of them.
                if known.not_before > clock_timestamp() then
                    outcome := 'retry';
                    delay := known.not_before - clock_timestamp();
                else
                    outcome := 'given_up';
                    reason := 'outcome_unknown';
                    detail := 'runs under leases (oncely.claim_lease) began this message: it runs under one only';
                end if;
                return;
            when 'retake' then
                -- The delay belongs to the key: an early copy spends no attempt.
                due := clock_timestamp() + interval '100 milliseconds';
                if known.not_before > due then
                    outcome := 'retry';
                    delay := known.not_before - clock_timestamp();
                    return;
                end if;
                -- If no row is updated, another session has completed the key meanwhile: the loop reads it again.
                update oncely.idempotency_keys as i
                set status = 'FAILED', attempts = i.attempts + 1, completed_at = at,
                    fingerprint = coalesce(print, i.fingerprint), not_before = null,
                    claimed_in = own, reason = 'incomplete_claim', last_error = incomplete, expires_at = ends,
                    marked_pid = null, marked_backend_start = null
                where i.tenant = tenant and i.consumer = consumer and i.key = key
                    -- Matches IN_PROGRESS, worded to suit no partial index: those are long, and the primary key finds
                    -- one row.
                    and i.completed_at is null
                    and i.fencing_token is null
                    -- The session that held the row meanwhile may have failed: the delay is checked again.
                    and (i.not_before is null or i.not_before <= due)
                returning i.attempts into attempt;
                if found then
                    outcome := 'granted';
                    perform oncely.note_claim(tenant);
                    return;
                end if;
                attempt := 0;
        end case;
    end loop;
    raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be claimed',
        hint = 'Try again.';
end
$$;
comment on function oncely.claim is
    'Claims a message for this transaction: granted (do the work, then oncely.complete, then COMMIT), duplicate '
    '(with the response), retry (its delay is not over: COMMIT, wait, requeue), conflict or given_up (dead-letter '
    'it); reserved: elsewhere (not in this cell: ROLLBACK, requeue). 55P03: another transaction has the key: ROLLBACK, '
    'requeue. ONC16: no right. Protocol version 1.';
revoke execute on function oncely.claim from public;
