create or replace function oncely.take_lease(
    tenant text,
    consumer text,
    key text,
    print bytea,
    owner text,
    lease interval,
    max_run interval,
    retention interval,
    on_conflict text,
    max_crashes integer,
    queue text,
    worker text,
    trace_id text,
    knows_payload boolean,
    may_take_over boolean,
    out outcome text,
    out token bigint,
    out attempt integer,
    out taken_over boolean,
    out delay interval,
    out response jsonb,
    out reason text,
    out detail text,
    out steps jsonb,
    out crashes integer
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    micros bigint;
    ends timestamptz;
    -- When a lease and a run end that begin now.
    lease_ends timestamptz;
    run_ends timestamptz;
    -- A copy without a lease may come slightly early, as in oncely.claim.
    due timestamptz;
    -- No lease is longer than a day: a longer one was granted by a clock that was ahead.
    longest timestamptz;
    decision text;
    known record;
    -- The key as it was granted.
    granted record;
begin
    perform oncely.check_claim(max_crashes), oncely.check_argument('owner', owner);
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    max_run := oncely.checked_time('max_run', max_run, lease, interval '30 days');
    perform oncely.check_short(queue, worker, trace_id);
    taken_over := false;
    crashes := 0;
    perform oncely.asking_since();
    for round in 1..8 loop
        at := clock_timestamp();
        micros := extract(epoch from at) * 1000000;
        ends := at + oncely.claimed_retention(tenant, retention);
        -- Waits for the session that holds the key in an open transaction.
        insert into oncely.idempotency_keys as i (
            tenant, consumer, key, status, attempts, created_at, fingerprint, expires_at, not_before, claimed_in, owner,
            fencing_token, run_ends_at
        )
        values (
            tenant, consumer, key, 'IN_PROGRESS', 0, at, print, ends, at + lease, own, owner, micros, at + max_run
        )
        on conflict on constraint idempotency_keys_pkey do nothing
        returning i.fencing_token, i.attempts, i.crash_attempts, i.steps into granted;
        exit when found;
        -- A separate statement, with a snapshot of its own, sees the winner's row.
        select i.status, i.fingerprint, i.reason, i.last_error, i.response, i.owner, i.fencing_token, i.not_before,
            i.run_ends_at, i.grace_ends_at
        into known
        from oncely.idempotency_keys as i
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        -- Neither claimed nor found: the key was collected in between.
        continue when not found;
        decision := case
            -- As in oncely.claim: a caller without a fingerprint is not granted a key that has one.
            when not knows_payload and known.fingerprint is not null
                and (on_conflict = 'dead_letter' or known.status = 'IN_PROGRESS')
                then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, false, on_conflict)
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
                -- Fingerprints of two policies prove nothing of the caller: the key is done, its response is withheld.
                if knows_payload and on_conflict = 'dead_letter'
                    and substr(known.fingerprint, 1, 4) <> substr(print, 1, 4)
                then
                    reason := 'key_conflict';
                elsif known.fingerprint is null or knows_payload then
                    response := known.response;
                end if;
                return;
            when 'given_up' then
                outcome := 'given_up';
                reason := known.reason;
                detail := concat_ws(': ', 'given up before', known.last_error);
                return;
            else
                null;
        end case;
        at := clock_timestamp();
        lease_ends := at + lease;
        run_ends := at + max_run;
        due := at + interval '100 milliseconds';
        longest := at + interval '24 hours';
        -- The same acquisition, after a lost reply: its run has not begun, and gets its whole time.
        if known.owner = owner then
            update oncely.idempotency_keys as i
            set not_before = least(greatest(i.not_before, lease_ends), run_ends), run_ends_at = run_ends
            where i.tenant = tenant and i.consumer = consumer and i.key = key and i.owner is not distinct from owner
            returning i.fencing_token, i.attempts, i.crash_attempts, i.steps into granted;
            exit when found;
            continue;
        end if;
        if known.owner is not null and known.not_before > at and known.not_before <= longest then
            outcome := 'in_flight';
            delay := known.not_before - at;
            return;
        end if;
        -- A client that was just cut off asks: the holder may have been, too, alive but unable to renew. Its state is
        -- unknown, so the key is not called in flight.
        if known.owner is not null and not may_take_over then
            outcome := 'retry';
            delay := lease;
            detail := 'the holder of the key may have been cut off, too';
            return;
        end if;
        -- Nor can a new session know how long the server was unreachable: a live holder renews, or ends, within one
        -- more lease. The holder gets that once, and within its run.
        if known.owner is not null and known.not_before is distinct from known.grace_ends_at
            and known.run_ends_at > at and oncely.asking_since() > at - lease / 2
        then
            lease_ends := oncely.lease_end(known.not_before, lease, known.run_ends_at);
            update oncely.idempotency_keys as i
            set not_before = lease_ends, grace_ends_at = lease_ends
            where i.tenant = tenant and i.consumer = consumer and i.key = key
                and i.completed_at is null and i.owner is not distinct from known.owner
                and i.fencing_token is not distinct from known.fencing_token
                and i.not_before is not distinct from known.not_before;
            continue;
        end if;
        if known.owner is null and known.not_before > due then
            outcome := 'retry';
            delay := known.not_before - at;
            return;
        end if;
        -- If no row is updated, another run was faster, or the holder has renewed: the loop reads the key again.
        update oncely.idempotency_keys as i
        set fencing_token = greatest(coalesce(i.fencing_token, 0) + 1, micros), claimed_in = own, owner = owner,
            not_before = lease_ends, run_ends_at = run_ends,
            crash_attempts = i.crash_attempts + case when i.owner is null then 0 else 1 end,
            fingerprint = coalesce(print, i.fingerprint), expires_at = ends, marked_pid = null,
            marked_backend_start = null
        where i.tenant = tenant and i.consumer = consumer and i.key = key
            -- Matches IN_PROGRESS, worded to suit no partial index, as in oncely.claim.
            and i.completed_at is null
            and i.fencing_token is not distinct from known.fencing_token
            and i.owner is not distinct from known.owner
            and (
                i.not_before is null
                or i.not_before <= case when i.owner is null then due else at end
                or (i.owner is not null and i.not_before > longest)
            )
        returning i.fencing_token, i.attempts, i.crash_attempts, i.steps into granted;
        continue when not found;
        exit when known.owner is null;
        attempt := granted.attempts + granted.crash_attempts;
        perform oncely.record_decision(
            tenant, consumer, key, 'taken_over', clock_timestamp(), attempt, queue, worker, trace_id,
            detail => format('the lease of %s ended at %s', known.owner, known.not_before)
        );
        exit when granted.crash_attempts < max_crashes;
        outcome := 'given_up';
        reason := 'crash';
        detail := format(
            '%s runs under a lease ended without a word; steps that began: %s', granted.crash_attempts,
            coalesce(oncely.steps_begun(granted.steps), 'none')
        );
        at := clock_timestamp();
        update oncely.idempotency_keys as i
        set status = 'FAILED', completed_at = at, owner = null, run_ends_at = null, not_before = null,
            reason = 'crash', last_error = detail
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        perform oncely.record_decision(
            tenant, consumer, key, 'dead_lettered', at, attempt, queue, worker, trace_id,
            reason => reason, detail => detail
        );
        return;
    end loop;
    if granted.fencing_token is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be claimed',
            hint = 'Try again.';
    end if;
    outcome := 'granted';
    token := granted.fencing_token;
    attempt := granted.attempts + 1;
    steps := coalesce(granted.steps, '{}');
    -- Also set if the key was given back since.
    crashes := granted.crash_attempts;
    taken_over := crashes > 0;
    -- A run that had to wait for the row gets its whole time.
    if clock_timestamp() > at + interval '1 second' then
        lease_ends := clock_timestamp() + lease;
        run_ends := clock_timestamp() + max_run;
        update oncely.idempotency_keys as i
        set not_before = least(greatest(i.not_before, lease_ends), greatest(i.run_ends_at, run_ends)),
            run_ends_at = greatest(i.run_ends_at, run_ends)
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
    end if;
end
$$;
comment on function oncely.take_lease is
    'What oncely.claim_lease does, with a fingerprint as it is stored; without a retention the consumer''s counts. For '
    'workers.';
revoke execute on function oncely.take_lease from public;
