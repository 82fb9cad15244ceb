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
#variable_conflict use_column
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    micros bigint;
    ends timestamptz;
    decision text;
    known record;
    seen record;
begin
    perform oncely.check_claim(take_lease.lease, take_lease.max_run, take_lease.max_crashes),
        oncely.check_argument('owner', take_lease.owner);
    perform oncely.check_short(take_lease.queue, take_lease.worker, take_lease.trace_id);
    taken_over := false;
    crashes := 0;
    perform oncely.asking_since();
    for round in 1..8 loop
        at := clock_timestamp();
        micros := extract(epoch from at) * 1000000;
        ends := at + oncely.claimed_retention(take_lease.tenant, take_lease.retention);
        -- Waits for whoever holds the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, fingerprint, expires_at, not_before, claimed_in, owner,
            fencing_token, run_ends_at
        )
        values (
            take_lease.tenant, take_lease.consumer, take_lease.key, 'IN_PROGRESS', 0, at, print, ends,
            at + take_lease.lease, own, take_lease.owner, micros, at + take_lease.max_run
        )
        on conflict (tenant, consumer, key) do nothing;
        if found then
            outcome := 'granted';
            token := micros;
            attempt := 1;
            steps := '{}';
            exit;
        end if;
        -- A statement of its own, with a snapshot of its own: it sees the winner's row.
        select i.status, i.fingerprint, i.reason, i.last_error, i.response, i.owner, i.fencing_token, i.not_before,
            i.run_ends_at, i.attempts, i.crash_attempts, i.steps, i.grace_ends_at
        into known
        from oncely.idempotency_keys as i
        where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key;
        -- Neither claimed nor there: collected in between.
        continue when not found;
        decision := case
            -- As in oncely.claim: who shows no payload is not given a key that came with one.
            when not take_lease.knows_payload and known.fingerprint is not null
                and (take_lease.on_conflict = 'dead_letter' or known.status = 'IN_PROGRESS')
                then 'conflict'
            else oncely.decide(known.status, known.fingerprint, print, false, take_lease.on_conflict)
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
                -- Prints of two policies say nothing of who asks: it is done, and its response is told to nobody.
                if take_lease.knows_payload and take_lease.on_conflict = 'dead_letter'
                    and substr(known.fingerprint, 1, 4) <> substr(print, 1, 4)
                then
                    reason := 'key_conflict';
                elsif known.fingerprint is null or take_lease.knows_payload then
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
        -- The same acquisition, whose reply was lost: its run has not begun, and gets its whole time.
        if known.owner = take_lease.owner then
            update oncely.idempotency_keys as i
            set not_before = oncely.lease_end(i.not_before, take_lease.lease, clock_timestamp() + take_lease.max_run),
                run_ends_at = clock_timestamp() + take_lease.max_run
            where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key
                and i.owner is not distinct from take_lease.owner;
            continue when not found;
            outcome := 'granted';
            token := known.fencing_token;
            attempt := known.attempts + 1;
            steps := coalesce(known.steps, '{}');
            crashes := known.crash_attempts;
            taken_over := crashes > 0;
            exit;
        end if;
        -- No lease is longer than a day: one that is was granted by a clock that was ahead.
        if known.owner is not null and known.not_before > clock_timestamp()
            and known.not_before <= clock_timestamp() + interval '1 day'
        then
            outcome := 'in_flight';
            delay := known.not_before - clock_timestamp();
            return;
        end if;
        -- Of a client that was just cut off: so may have been the holder, who lives and could not renew. Whether it
        -- does is not known, so the key is not called in flight.
        if known.owner is not null and not take_lease.may_take_over then
            outcome := 'retry';
            delay := take_lease.lease;
            detail := 'whoever holds the key may have been cut off, too';
            return;
        end if;
        -- Nor can a session of now know for how long nobody could reach the server: a holder that lives renews, or
        -- ends, within one more lease. It gets that once, and within its run.
        if known.owner is not null and known.not_before is distinct from known.grace_ends_at
            and known.run_ends_at > clock_timestamp()
            and oncely.asking_since() > clock_timestamp() - take_lease.lease / 2
        then
            update oncely.idempotency_keys as i
            set not_before = e.grace, grace_ends_at = e.grace
            from (
                select oncely.lease_end(known.not_before, take_lease.lease, known.run_ends_at) as grace
            ) as e
            where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key
                and i.completed_at is null and i.owner is not distinct from known.owner
                and i.fencing_token is not distinct from known.fencing_token
                and i.not_before is not distinct from known.not_before;
            continue;
        end if;
        -- Not of a lease: a copy may come a little early, as in oncely.claim.
        if known.owner is null and known.not_before > clock_timestamp() + interval '100 milliseconds' then
            outcome := 'retry';
            delay := known.not_before - clock_timestamp();
            return;
        end if;
        -- Nothing updated: somebody else was faster, or the holder has renewed it meanwhile, so it is looked at again.
        update oncely.idempotency_keys as i
        set fencing_token = greatest(coalesce(i.fencing_token, 0) + 1, micros), claimed_in = own,
            owner = take_lease.owner, not_before = clock_timestamp() + take_lease.lease,
            run_ends_at = clock_timestamp() + take_lease.max_run,
            crash_attempts = i.crash_attempts + case when i.owner is null then 0 else 1 end,
            fingerprint = coalesce(print, i.fingerprint), expires_at = ends, marked_pid = null,
            marked_backend_start = null
        where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key
            -- IN_PROGRESS, in words that suit none of the partial indexes, as in oncely.claim.
            and i.completed_at is null
            and i.fencing_token is not distinct from known.fencing_token
            and i.owner is not distinct from known.owner
            and (
                i.not_before is null
                or i.not_before <= clock_timestamp()
                    + case when i.owner is null then interval '100 milliseconds' else interval '0' end
                or (i.owner is not null and i.not_before > clock_timestamp() + interval '1 day')
            )
        returning i.fencing_token, i.attempts, i.crash_attempts, i.steps into seen;
        continue when not found;
        if known.owner is not null then
            insert into oncely.audit (
                tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker, login, trace_id
            )
            values (
                take_lease.tenant, clock_timestamp(), seen.attempts + seen.crash_attempts, take_lease.consumer,
                take_lease.key, coalesce(take_lease.queue, ''), 'taken_over',
                format('the lease of %s ended at %s', known.owner, known.not_before),
                oncely.worker_name(take_lease.worker), session_user, take_lease.trace_id
            );
        end if;
        if seen.crash_attempts >= take_lease.max_crashes and known.owner is not null then
            outcome := 'given_up';
            attempt := seen.attempts + seen.crash_attempts;
            reason := 'crash';
            detail := format(
                '%s runs under a lease ended without a word; steps that began: %s', seen.crash_attempts,
                coalesce(oncely.steps_begun(seen.steps), 'none')
            );
            update oncely.idempotency_keys as i
            set status = 'FAILED', completed_at = clock_timestamp(), owner = null, run_ends_at = null,
                not_before = null, reason = 'crash', last_error = take_lease.detail
            where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key;
            insert into oncely.audit (
                tenant, occurred_at, attempt, consumer, key, queue, outcome, reason, detail, worker, login, trace_id
            )
            values (
                take_lease.tenant, clock_timestamp(), seen.attempts + seen.crash_attempts, take_lease.consumer,
                take_lease.key, coalesce(take_lease.queue, ''), 'dead_lettered', 'crash', take_lease.detail,
                oncely.worker_name(take_lease.worker), session_user, take_lease.trace_id
            );
            return;
        end if;
        outcome := 'granted';
        token := seen.fencing_token;
        attempt := seen.attempts + 1;
        steps := coalesce(seen.steps, '{}');
        -- Also where the key was given back since.
        crashes := seen.crash_attempts;
        taken_over := crashes > 0;
        exit;
    end loop;
    if outcome = 'granted' then
        -- Whoever had to wait for the row gets his whole time all the same.
        if clock_timestamp() > at + interval '1 second' then
            update oncely.idempotency_keys as i
            set not_before = oncely.lease_end(i.not_before, take_lease.lease, greatest(i.run_ends_at, ends_again)),
                run_ends_at = greatest(i.run_ends_at, ends_again)
            from (select clock_timestamp() + take_lease.max_run as ends_again) as e
            where i.tenant = take_lease.tenant and i.consumer = take_lease.consumer and i.key = take_lease.key;
        end if;
        return;
    end if;
    raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be claimed',
        hint = 'Try again.';
end
$$;
comment on function oncely.take_lease is
    'What oncely.claim_lease does, with a fingerprint as it is stored; without a retention the consumer''s counts. For '
    'workers.';
revoke execute on function oncely.take_lease from public;
