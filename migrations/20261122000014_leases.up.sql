set local search_path = pg_catalog, pg_temp;

-- Adds leases for effects outside PostgreSQL, which no transaction covers: a charge, an e-mail. A client holds the key
-- for a time, in a transaction that commits before the work begins, and completes it in another one after it.
--
-- The lease is the key's own row: IN_PROGRESS, with an owner, a fencing token and its end (not_before, which every
-- other consumer of the key heeds already). The end of a lease takes nothing from its holder; another run's claim does,
-- by a greater token. All times are the server's.
--
-- A call that has begun may have happened. So a step says before its first call whether it may be called again, and its
-- key for the other side is the same in each run: where the other side deduplicates by it, a repeated call has no
-- second effect, for as long as the other side remembers.

-- from functions/lease_protocol_version.sql
create or replace function oncely.lease_protocol_version() returns integer
language sql immutable parallel safe
begin atomic
    select 1;
end;
comment on function oncely.lease_protocol_version is
    'Version of oncely.claim_lease and of the functions that take its token. Within a version parameters with defaults '
    'and columns are only added.';

-- from functions/hold_lease.sql
-- Locks a key for a run: a second run at once waits for the end of the first one's statement, then rereads the row.
create or replace function oncely.hold_lease(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
begin
    perform oncely.check_isolation();
    perform oncely.check_argument('tenant', tenant), oncely.check_argument('consumer', consumer),
        oncely.check_argument('key', key);
    perform oncely.check_right('consume', consumer, tenant);
    -- Tokens only grow: a run with another token has no lease, and locks no row that others wait for.
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    if held.fencing_token is distinct from token then
        return held;
    end if;
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key
    for update;
    if held.owner is not null and held.fencing_token = token
        and held.claimed_in = pg_current_xact_id()::text::bigint
    then
        raise exception using errcode = 'ONC19',
            message = 'oncely: the lease was granted in this very transaction',
            hint = 'COMMIT the claim first: until then no other session sees it, and a rollback would take it back.';
    end if;
    return held;
end
$$;
comment on function oncely.hold_lease is
    'Locks a key''s row for a run that says to hold it, and returns it as it is; SQLSTATE ONC19 where the claim is not '
    'committed yet.';
revoke execute on function oncely.hold_lease from public;

-- from functions/is_held.sql
create or replace function oncely.is_held(owner text, held_token bigint, token bigint) returns boolean
language sql immutable
begin atomic
    select coalesce(owner is not null and held_token = token, false);
end;
comment on function oncely.is_held is 'Is this the lease that holds the key?';

-- from functions/lease_is_lost.sql
create or replace function oncely.lease_is_lost() returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC18', message = 'oncely: this lease of the key is over',
        hint = 'Another run has the key, or it was given back, failed or settled. Roll back; oncely.fail_lease says '
            'so in the trail.';
end
$$;
comment on function oncely.lease_is_lost is 'Raises SQLSTATE ONC18.';

-- from functions/steps_begun.sql
create or replace function oncely.steps_begun(steps jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select string_agg(s.name, ', ' order by s.name)
        from jsonb_each(steps) as s (name, step)
        where s.step ->> 'state' = 'started'
    );
end
$$;
comment on function oncely.steps_begun is 'Names of the steps that began and may have happened; null where none did.';

-- from functions/lease_end.sql
-- Returns a renewed lease's end: not before its present end, nor after the run's.
create or replace function oncely.lease_end(ends timestamptz, lease interval, run_ends_at timestamptz)
returns timestamptz
language sql volatile
begin atomic
    select least(greatest(ends, clock_timestamp() + lease), run_ends_at);
end;
comment on function oncely.lease_end is 'When a lease ends that is renewed now.';

-- from functions/lease_retention.sql
-- Returns the retention of a key with its own end, counted from the last claim, which set it: the token is the time of
-- that claim, unless the clock was set back.
create or replace function oncely.lease_retention(expires_at timestamptz, token bigint) returns interval
language sql immutable
begin atomic
    select case
        -- greatest ignores nulls.
        when expires_at is not null
        then greatest(expires_at - to_timestamp(token / 1000000.0), interval '0')
    end;
end;
comment on function oncely.lease_retention is 'How long a held key is remembered; null where its consumer says that.';

-- from functions/hold_in_doubt.sql
-- Locks a key with a call in doubt. A call's outcome belongs to its step, even after the lease: the run may have lost
-- the key while the server was unreachable, and learn the outcome when another run has it, or it is given up.
create or replace function oncely.hold_in_doubt(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    held oncely.idempotency_keys;
begin
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = hold_in_doubt.tenant and i.consumer = hold_in_doubt.consumer and i.key = hold_in_doubt.key
        and i.status <> 'COMPLETED'
        and exists (
            select from jsonb_each(i.steps) as s (name, step)
            where s.step ->> 'state' in ('started', 'open') and (s.step ->> 'token')::bigint = hold_in_doubt.token
        )
    for update;
    return held;
end
$$;
comment on function oncely.hold_in_doubt is
    'Locks and returns a key that is not completed and has a step that began under this lease and may have happened; '
    'null where it is none.';
revoke execute on function oncely.hold_in_doubt from public;

-- from functions/store_step.sql
create or replace function oncely.store_step(
    held oncely.idempotency_keys, step text, known jsonb, token bigint, lease interval
) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    all_steps jsonb := coalesce(held.steps, '{}') || jsonb_build_object(step, known);
    ends timestamptz := oncely.lease_end(held.not_before, lease, held.run_ends_at);
    at timestamptz := clock_timestamp();
    is_open boolean;
    is_doubted boolean;
begin
    if oncely.is_held(held.owner, held.fencing_token, token) then
        update oncely.idempotency_keys as i
        set not_before = ends, steps = all_steps
        where i.tenant = held.tenant and i.consumer = held.consumer and i.key = held.key;
        return;
    end if;
    is_open := held.status = 'FAILED' and held.reason = 'outcome_unknown' and oncely.steps_begun(all_steps) is null;
    -- oncely.begin_step has reported this outcome as unknown to the run that holds the key: that run loses its lease,
    -- and no attempt is counted.
    is_doubted := coalesce(
        held.owner is not null and (held.steps -> step ->> 'doubted_by')::bigint = held.fencing_token, false
    );
    update oncely.idempotency_keys as i
    set steps = all_steps,
        owner = case when not is_doubted then i.owner end,
        run_ends_at = case when not is_doubted then i.run_ends_at end,
        not_before = case when is_doubted then at else i.not_before end,
        -- The key runs again, from behind the step.
        status = case when is_open then 'IN_PROGRESS' else i.status end,
        completed_at = case when not is_open then i.completed_at end,
        reason = case when not is_open then i.reason end,
        last_error = case when not is_open then i.last_error end,
        error_code = case when not is_open then i.error_code end
    where i.tenant = held.tenant and i.consumer = held.consumer and i.key = held.key;
    perform oncely.record_decision(
        held.tenant, held.consumer, held.key, 'fenced', at, held.attempts, '', null, null,
        detail => format(
            'lost the lease %s, and knows what became of its call all the same: %s is %s', token, step,
            known ->> 'state'
        )
    );
end
$$;
comment on function oncely.store_step is
    'Stores a step of a key that this lease holds, and renews the lease; or of a key of oncely.hold_in_doubt: '
    'where that was the last step whose outcome was not known, a key that was given up for it may run again, and so '
    'may one whose run was told so. Not for callers.';
revoke execute on function oncely.store_step from public;

-- from functions/asking_since.sql
-- Keeps the time in a session setting.
create or replace function oncely.asking_since() returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    since text := current_setting('oncely.asking_since', true);
begin
    if coalesce(since, '') = '' then
        since := extract(epoch from clock_timestamp())::text;
        perform set_config('oncely.asking_since', since, false);
    end if;
    return to_timestamp(since::double precision);
end
$$;
comment on function oncely.asking_since is 'Since when this session claims by leases.';
revoke execute on function oncely.asking_since from public;

-- from functions/check_claim.sql
create or replace function oncely.check_claim(max_crashes integer) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform oncely.check_isolation();
    if max_crashes is null or max_crashes not between 1 and 10000 then
        raise exception using errcode = 'ONC11', message = 'oncely: max_crashes is 1 to 10000';
    end if;
end
$$;
comment on function oncely.check_claim is 'Refuses what no lease can be granted with (SQLSTATE ONC10, ONC11).';

-- from functions/take_lease.sql
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

-- from functions/take_leases.sql
-- Claims many keys at once: one statement, one commit. No claim waits for long, since all others wait with it.
--
-- One statement claims the keys without a row: its fixed cost (it parses each constraint anew) is several times a
-- row's. Each other key is claimed by itself.
create or replace function oncely.take_leases(
    tenants text[],
    consumer text,
    keys text[],
    prints bytea[],
    owners text[],
    lease interval,
    max_run interval,
    on_conflict text,
    max_crashes integer,
    queues text[],
    worker text,
    trace_ids text[],
    may_take_over boolean,
    out place bigint,
    out outcome text,
    out token bigint,
    out attempt integer,
    out crashes integer,
    out delay interval,
    out reason text,
    out detail text
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    micros bigint := extract(epoch from at) * 1000000;
    -- Places of the keys without a row.
    fresh bigint[];
begin
    perform oncely.check_claim(max_crashes), oncely.asking_since();
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    max_run := oncely.checked_time('max_run', max_run, lease, interval '30 days');
    with asked as materialized (
        select q.tenant, q.key, q.print, q.owner, q.place
        from unnest(tenants, keys, prints, owners) with ordinality as q (tenant, key, print, owner, place)
    ),
    claimed as (
        insert into oncely.idempotency_keys as i (
            tenant, consumer, key, status, attempts, created_at, fingerprint, not_before, claimed_in, owner,
            fencing_token, run_ends_at
        )
        select a.tenant, consumer, a.key, 'IN_PROGRESS', 0, at, a.print, at + lease, own, a.owner, micros, at + max_run
        from asked as a
        order by a.place
        on conflict on constraint idempotency_keys_pkey do nothing
        returning i.tenant, i.key, i.owner
    )
    select coalesce(array_agg(a.place order by a.place), '{}') into fresh
    from asked as a
    -- Joins by owner, too: of two copies in one call only one is granted.
    join claimed as c on c.tenant = a.tenant and c.key = a.key and c.owner = a.owner;
    return query
    select f.place, 'granted', micros, 1, 0, null::interval, null::text, null::text
    from unnest(fresh) as f (place);
    if cardinality(fresh) < cardinality(keys) then
        return query
        select q.place, t.outcome, t.token, t.attempt, t.crashes, t.delay, t.reason, t.detail
        from unnest(tenants, keys, prints, owners, queues, trace_ids) with ordinality
            as q (tenant, key, print, owner, queue, trace_id, place)
        cross join lateral oncely.take_lease(
            q.tenant, consumer, q.key, q.print, q.owner, lease, max_run, null, on_conflict, max_crashes, q.queue,
            worker, q.trace_id, true, may_take_over
        ) as t
        where q.place <> all (fresh);
    end if;
    -- A run that had to wait for others gets its whole time.
    if clock_timestamp() > at + interval '1 second' then
        at := clock_timestamp();
        update oncely.idempotency_keys as i
        set not_before = at + lease, run_ends_at = at + max_run
        from unnest(tenants, keys) with ordinality as q (tenant, key, place)
        where oncely.in_group(i.tenant, tenants) and i.tenant = q.tenant and i.consumer = consumer and i.key = q.key
            and q.place = any (fresh);
    end if;
end
$$;
comment on function oncely.take_leases is
    'oncely.take_lease for many messages at once, by their places. 55P03: a key is held by an open transaction; then '
    'each is asked for by itself. For workers.';
revoke execute on function oncely.take_leases from public;

-- from functions/claim_lease.sql
create or replace function oncely.claim_lease(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    owner text,
    lease interval default interval '30 seconds',
    max_run interval default interval '10 minutes',
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    max_crashes integer default 3,
    queue text default '',
    worker text default null,
    trace_id text default null,
    may_take_over boolean default true,
    out outcome text,
    out token bigint,
    out attempt integer,
    out taken_over boolean,
    out delay interval,
    out response jsonb,
    out reason text,
    out detail text,
    out steps jsonb
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
begin
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    if extract(epoch from max_run) > extract(epoch from retention) then
        raise exception using errcode = 'ONC11', message = 'oncely: max_run is longer than retention',
            hint = 'The key must outlive its run.';
    end if;
    perform oncely.check_right('consume', consumer, tenant);
    select t.outcome, t.token, t.attempt, t.taken_over, t.delay, t.response, t.reason, t.detail, t.steps
    into outcome, token, attempt, taken_over, delay, response, reason, detail, steps
    from oncely.take_lease(
        tenant, consumer, key, oncely.stored_fingerprint(fingerprint), owner, lease, max_run, retention, on_conflict,
        max_crashes, queue, worker, trace_id, fingerprint is not null, coalesce(may_take_over, true)
    ) as t;
    if outcome = 'retry' and detail is not null then
        outcome := 'in_flight';
        detail := null;
    end if;
end
$$;
comment on function oncely.claim_lease is
    'Holds a key for a time: granted (COMMIT, do the work under the token, oncely.complete_lease), in_flight (another '
    'run holds it) or retry (its delay is not over): COMMIT, wait, requeue, no attempt is spent; duplicate (with the '
    'response; without it, for key_conflict, where another fingerprint policy has stored it), conflict or given_up '
    '(dead-letter it). Owner: a name made anew for each acquisition; claimed again by '
    'the same one, after a lost reply, it is granted again. may_take_over: false where you could not reach the server '
    'within the last lease. 55P03: another transaction has the key: ROLLBACK, ask again later. Lease protocol '
    'version 1.';
revoke execute on function oncely.claim_lease from public;

-- from functions/renew_lease.sql
create or replace function oncely.renew_lease(
    tenant text, consumer text, key text, token bigint, lease interval default interval '30 seconds'
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    ends timestamptz;
begin
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    held := oncely.hold_lease(tenant, consumer, key, token);
    -- After max_run no lease is renewed, though no run has taken the key over yet.
    if not oncely.is_held(held.owner, held.fencing_token, token) or held.run_ends_at <= clock_timestamp() then
        return null;
    end if;
    ends := oncely.lease_end(held.not_before, lease, held.run_ends_at);
    update oncely.idempotency_keys as i set not_before = ends
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    return ends - clock_timestamp();
end
$$;
comment on function oncely.renew_lease is
    'Makes the lease end later, but not later than max_run after the claim. Returns what is left of it; null where it '
    'is lost: stop. Lease protocol version 1.';
revoke execute on function oncely.renew_lease from public;

-- from functions/renew_leases.sql
-- Renews many leases at once. Skips a locked row, which is being finished or taken over, until the next renewal. Finds
-- each key through the primary key, whatever the statistics at planning time: the plan is kept. Hence neither scans nor
-- other joins, and a held key is one with run_ends_at (see idempotency_keys_held).
create or replace function oncely.renew_leases(
    tenants text[],
    consumer text,
    keys text[],
    tokens bigint[],
    lease interval,
    out place bigint,
    out remaining interval,
    out is_held boolean
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    ends timestamptz := at + lease;
begin
    return query
        with asked as materialized (
            select a.tenant, a.key, a.token, a.place
            from unnest(tenants, keys, tokens) with ordinality as a (tenant, key, token, place)
        ),
        free as materialized (
            select i.tenant, i.key
            from asked as a
            join oncely.idempotency_keys as i
                on i.tenant = a.tenant and i.consumer = renew_leases.consumer and i.key = a.key
            where oncely.in_group(i.tenant, tenants) and i.fencing_token = a.token and i.run_ends_at > at
            for update of i skip locked
        ),
        renewed as (
            update oncely.idempotency_keys as i
            -- As oncely.lease_end.
            set not_before = least(greatest(i.not_before, ends), i.run_ends_at)
            from free as f
            where oncely.in_group(i.tenant, tenants) and i.tenant = f.tenant and i.consumer = renew_leases.consumer
                and i.key = f.key
            returning i.tenant, i.key, i.not_before
        )
        select a.place, r.not_before - at,
            r.key is not null or coalesce(i.fencing_token = a.token and i.run_ends_at > at, false)
        from asked as a
        left join renewed as r on r.tenant = a.tenant and r.key = a.key
        left join oncely.idempotency_keys as i
            on oncely.in_group(i.tenant, tenants) and i.tenant = a.tenant and i.consumer = renew_leases.consumer
                and i.key = a.key;
end
$$;
comment on function oncely.renew_leases is
    'oncely.renew_lease for many keys at once, by their places: what is left; null where the row is locked now '
    '(is_held) or the lease is lost (not is_held). For workers.';
revoke execute on function oncely.renew_leases from public;

-- from functions/complete_lease.sql
create or replace function oncely.complete_lease(
    tenant text,
    consumer text,
    key text,
    token bigint,
    response jsonb default null,
    queue text default '',
    worker text default null,
    trace_id text default null,
    mirror boolean default true,
    refused boolean default false
) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    now timestamptz;
    retention interval;
    ends timestamptz;
begin
    perform oncely.check_short(queue, worker, trace_id);
    perform oncely.check_json(
        'response', response, 'Keep what is large in a table of your own, and respond with its id.'
    );
    held := oncely.hold_lease(tenant, consumer, key, token);
    now := clock_timestamp();
    if held.status = 'COMPLETED' and held.fencing_token = token then
        perform oncely.await_standby();
        return 'already_completed';
    end if;
    if not oncely.is_held(held.owner, held.fencing_token, token) then
        held := oncely.hold_in_doubt(tenant, consumer, key, token);
        if (held.status = 'FAILED' and held.reason = 'outcome_unknown') is not true then
            perform oncely.lease_is_lost();
        end if;
        -- A requeue of the key's letter would run nothing.
        perform oncely.close_letters(held, now);
    end if;
    retention := oncely.lease_retention(held.expires_at, held.fencing_token);
    ends := oncely.bounded(now + retention);
    update oncely.idempotency_keys as i
    set status = 'COMPLETED', attempts = i.attempts + 1, completed_at = now, response = response,
        -- Identifies the lease that completed the key.
        fencing_token = token,
        reason = case when refused then 'refused' end, last_error = null, error_code = null, claimed_in = null,
        owner = null, run_ends_at = null, not_before = null,
        expires_at = ends
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    perform oncely.record_decision(
        tenant, consumer, key, case when refused then 'refused' else 'completed' end, now, held.attempts + 1, queue,
        worker, trace_id,
        -- The token is the time of the claim, unless the clock was set back.
        greatest(extract(epoch from now) * 1000000 - token, 0)
    );
    if mirror then
        if retention is null then
            select c.retention into retention from oncely.consumers as c where c.consumer = consumer;
        end if;
        insert into oncely.mirror_queue
            (tenant, id, kind, created_at, expires_at, completed_at, consumer, key, fingerprint)
        values (
            tenant, oncely.uuid_v7(now), 'identity', now,
            -- No worker has registered the consumer: only PostgreSQL knows its keys.
            oncely.bounded(now + coalesce(retention, interval '0')),
            -- Set for a key without its own end: a retention shortened before the relay takes it applies.
            case when held.expires_at is null then now end, consumer, key, held.fingerprint
        );
    end if;
    perform oncely.note_claim(tenant);
    return 'completed';
end
$$;
comment on function oncely.complete_lease is
    'Completes a held key: first in the finishing transaction, before its own writes. completed: write, then COMMIT. '
    'already_completed: an earlier transaction of this very lease did it, whose reply was lost: write nothing, COMMIT, '
    'acknowledge. '
    'ONC18: the lease is lost: ROLLBACK, nothing of this run counts. refused: the answer is no, and the response says '
    'why. Lease protocol version 1.';
revoke execute on function oncely.complete_lease from public;

-- from functions/complete_leases.sql
-- Completes many keys at once, of runs that write nothing themselves: one statement, one commit. complete_lease reports
-- on keys that are not in the expected state.
create or replace function oncely.complete_leases(
    tenants text[],
    consumer text,
    keys text[],
    tokens bigint[],
    responses jsonb[],
    refused boolean[],
    queues text[],
    worker text,
    trace_ids text[],
    tags bytea,
    out place bigint,
    out outcome text
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
-- Updates row by row through the primary key, in the given order, whatever the statistics at planning time.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    own bigint := pg_current_xact_id()::text::bigint;
    now timestamptz := clock_timestamp();
    micros bigint := extract(epoch from now) * 1000000;
    name text := oncely.worker_name(worker);
    retention interval;
    -- Places of the keys that were held.
    done bigint[];
begin
    perform oncely.check_isolation(), oncely.check_short(null, worker, null);
    with asked as materialized (
        select q.tenant, q.key, q.token, q.response, coalesce(q.refused, false) as refused, q.queue, q.trace_id, q.place
        from unnest(tenants, keys, tokens, responses, refused, queues, trace_ids) with ordinality
            as q (tenant, key, token, response, refused, queue, trace_id, place)
        where (
                octet_length(q.response::text) > 65536
                and octet_length(q.response::text) > oncely.json_limit(q.response)
            ) is not true
            and (greatest(octet_length(q.queue), octet_length(q.trace_id)) > 255) is not true
    ),
    completed as (
        update oncely.idempotency_keys as i
        set status = 'COMPLETED', attempts = i.attempts + 1, completed_at = now, response = a.response,
            reason = case when a.refused then 'refused' end, last_error = null, error_code = null, claimed_in = null,
            owner = null, run_ends_at = null, not_before = null
        from asked as a
        where oncely.in_group(i.tenant, tenants) and i.tenant = a.tenant and i.consumer = consumer and i.key = a.key
            -- Matches held keys, worded to suit no partial index: the primary key finds the row.
            and i.fencing_token = a.token and i.run_ends_at is not null and i.claimed_in is distinct from own
            -- A client's claim set an end: complete_lease computes the new one.
            and i.expires_at is null
        returning a.place, a.tenant, a.key, a.token, a.refused, a.queue, a.trace_id, i.attempts
    ),
    recorded as (
        insert into oncely.audit (
            tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, login, trace_id
        )
        select c.tenant, now, c.attempts,
            -- The token is the time of the claim, unless the clock was set back.
            greatest(micros - c.token, 0), consumer, c.key, coalesce(c.queue, ''),
            case when c.refused then 'refused' else 'completed' end, name, session_login, c.trace_id
        from completed as c
    )
    select coalesce(array_agg(c.place), '{}') into done
    from completed as c;
    return query
    select d.place, 'completed' from unnest(done) as d (place);
    -- Keys that were completed earlier have their records already.
    if tags is not null and cardinality(done) > 0 then
        select c.retention into retention from oncely.consumers as c where c.consumer = consumer;
        insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
        values (
            tenants[1], oncely.uuid_v7(now), 'mirror', now,
            -- No worker has registered the consumer: only PostgreSQL knows its keys.
            oncely.bounded(now + coalesce(retention, interval '0')), consumer, tags
        );
    end if;
    if cardinality(done) < cardinality(keys) then
        return query
        select q.place,
            oncely.complete_lease(
                q.tenant, consumer, q.key, q.token, q.response, q.queue, worker, q.trace_id, true, q.refused
            )
        from unnest(tenants, keys, tokens, responses, refused, queues, trace_ids) with ordinality
            as q (tenant, key, token, response, refused, queue, trace_id, place)
        where q.place <> all (done);
    end if;
end
$$;
comment on function oncely.complete_leases is
    'oncely.complete_lease for many keys at once, by their places; tags: of all of them, for the mirror, or null. '
    'An error of one is an error of all: then each is completed by itself. For workers.';
revoke execute on function oncely.complete_leases from public;

-- from functions/fail_lease.sql
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

-- from functions/release_lease.sql
create or replace function oncely.release_lease(tenant text, consumer text, key text, token bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys := oncely.hold_lease(tenant, consumer, key, token);
    at timestamptz := clock_timestamp();
begin
    if oncely.is_held(held.owner, held.fencing_token, token) then
        update oncely.idempotency_keys as i
        set owner = null, run_ends_at = null, not_before = at
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        return true;
    end if;
    return coalesce(held.status = 'IN_PROGRESS' and held.fencing_token = token, false);
end
$$;
comment on function oncely.release_lease is
    'Gives a held key back, and counts nothing: the next copy runs at once. For a program that stops. False where the '
    'lease is lost. Lease protocol version 1.';
revoke execute on function oncely.release_lease from public;

-- from functions/revoke_lease.sql
-- Revokes the lease of a holder that hangs, or has lost its host: the key need not wait for the lease to end. The token
-- grows, so that nothing of that run counts any more.
create or replace function oncely.revoke_lease(
    tenant text, consumer text, key text, note text default null, token bigint default null, os_user text default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    was record;
begin
    select i.owner, i.fencing_token as token into was
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key and i.run_ends_at is not null
    for update;
    -- An operator who examined one run means no later one.
    if not found or was.token <> token then
        return false;
    end if;
    update oncely.idempotency_keys as i
    set owner = null, run_ends_at = null, not_before = at, fencing_token = i.fencing_token + 1
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        tenant, oncely.uuid_v7(at), at, concat(session_login, ' (' || left(os_user, 255) || ')'), 'revoke_lease',
        jsonb_build_object('consumer', consumer, 'key', key, 'owner', was.owner, 'token', was.token), 1,
        left(note, 8000)
    );
    return true;
end
$$;
comment on function oncely.revoke_lease is
    'Takes a held key from its holder, whose run can complete nothing any more, and can only store the outcome of a '
    'call that it is making; what it has called outside has happened. The next copy runs. token: only where this very '
    'lease still holds it. False where no run holds the key, or another lease does. For operators.';
revoke execute on function oncely.revoke_lease from public;

-- end of functions

-- Records a run's external calls in the key's own row (steps): begun, then done or refused.

-- from functions/check_steps.sql
create or replace function oncely.check_steps(steps jsonb, is_new boolean) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if is_new and (select count(*) from jsonb_object_keys(steps)) >= 100 then
        raise exception using errcode = 'ONC15', message = 'oncely: the key has 100 steps, and may have no more';
    end if;
    -- Each step rewrites the row. Checked before a call, and never when its result is to be stored.
    if is_new and octet_length(steps::text) > 1048576 then
        raise exception using errcode = 'ONC15', message = 'oncely: the steps of the key have more than 1048576 bytes';
    end if;
end
$$;
comment on function oncely.check_steps is 'Refuses a step too many (SQLSTATE ONC15).';

-- from functions/may_repeat.sql
-- Counts from the first call, and a tenth less than the other side says: its clock may differ. A call in the future was
-- noted by a clock that was ahead, and its time is unknown.
create or replace function oncely.may_repeat(rule text, period interval, started_at timestamptz, at timestamptz)
returns boolean
language sql stable
begin atomic
    select coalesce(
        rule = 'always' or (rule = 'within' and started_at <= at and at < started_at + period * 0.9), false
    );
end;
comment on function oncely.may_repeat is 'May a step be called again that may have happened?';

-- from functions/step_key.sql
-- Derives a step's key. Clients in any language can compute it, too; a test compares the results.
create or replace function oncely.step_key(tenant text, consumer text, key text, step text, round integer default 0)
returns uuid
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea;
begin
    digest := substr(
        sha256(
            int4send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
            || int4send(octet_length(consumer)) || convert_to(consumer, 'UTF8')
            || int4send(octet_length(key)) || convert_to(key, 'UTF8')
            || int4send(octet_length(step)) || convert_to(step, 'UTF8')
            || int4send(round)
        ), 1, 16
    );
    return encode(
        set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128), 'hex'
    )::uuid;
end
$$;
comment on function oncely.step_key is
    'The key of a step for the other side, the same in every run and language: a UUID of version 8, of SHA-256 over '
    'tenant, consumer, key and step (UTF-8, each after its length in four bytes, most significant first) and the '
    'round (four bytes).';

-- from functions/begin_step.sql
create or replace function oncely.begin_step(
    tenant text,
    consumer text,
    key text,
    token bigint,
    step text,
    repeat text,
    "window" interval default null,
    call_id uuid default null,
    lease interval default interval '30 seconds',
    out state text,
    out result jsonb,
    out call_key uuid,
    out round integer
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    at timestamptz;
    known jsonb;
    said_again boolean;
begin
    perform oncely.check_argument('step', step);
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    if repeat is null or repeat not in ('always', 'within', 'ask', 'never') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether a step may be called again is always, within, ask or never';
    end if;
    if (repeat = 'within') <> ("window" is not null) then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a window belongs to the rule within, and to no other',
            hint = 'It is how long the other side knows a key again, such as interval ''24 hours''.';
    end if;
    if "window" is not null then
        "window" := oncely.checked_time('window', "window", interval '1 second', interval '3650 days');
    end if;
    held := oncely.hold_lease(tenant, consumer, key, token);
    at := clock_timestamp();
    -- After max_run a run begins no step, even if no other run has taken the key over yet.
    if not oncely.is_held(held.owner, held.fencing_token, token) or held.run_ends_at <= at then
        perform oncely.lease_is_lost();
    end if;
    known := held.steps -> step;
    round := coalesce((known ->> 'round')::integer, 0);
    call_key := oncely.step_key(tenant, consumer, key, step, round);
    case coalesce(known ->> 'state', 'new')
        when 'done' then
            state := 'done';
            result := known -> 'result';
        when 'started' then
            -- The reply to this very call was lost: the external call was not made.
            said_again := coalesce(known ->> 'call_id' = call_id::text and (known ->> 'token')::bigint = token, false);
            state := case
                when said_again then case when known ? 'allowed' then 'repeat' else 'run' end
                -- Allowed by the rule of the first call and by the present one: a program may have changed its rule.
                when oncely.may_repeat(repeat, "window", (known ->> 'started_at')::timestamptz, at)
                and oncely.may_repeat(
                    known ->> 'repeat', (known ->> 'window')::interval, (known ->> 'started_at')::timestamptz, at
                )
                then 'repeat'
                else 'unknown'
            end;
            -- started_at stays: the first call may have gone out then.
            if state = 'repeat' and not said_again then
                known := known - '{call_id,allowed}'::text[] || jsonb_build_object('token', token, 'repeated', true);
            -- If the outcome of that call becomes known later, this run loses its lease (oncely.store_step).
            elsif state = 'unknown' then
                known := known || jsonb_build_object('doubted_by', token);
            end if;
        when 'open' then
            -- The call may have happened, and an operator allows one more, whatever the rule: a repeated call.
            state := 'repeat';
            known := known || jsonb_build_object(
                'state', 'started', 'token', token, 'call_id', call_id, 'repeated', true, 'allowed', true
            );
        else
            perform oncely.check_steps(held.steps, known is null);
            state := 'run';
            known := jsonb_strip_nulls(jsonb_build_object(
                'state', 'started', 'round', round, 'token', token, 'started_at', at, 'call_id', call_id,
                'repeat', repeat, 'window', "window"
            ));
    end case;
    perform oncely.store_step(held, step, known, token, lease);
end
$$;
comment on function oncely.begin_step is
    'Says before a call outside that it is about to happen: run (COMMIT, then call with call_key), repeat (an earlier '
    'call may have happened, and by the rule, or by an operator''s leave, it may be repeated with the same call_key), '
    'done (with the result: don''t '
    'call), unknown (it may have happened and must not be repeated: ask the other side, then oncely.checkpoint or '
    'oncely.refuse_step; or oncely.fail_lease as outcome_unknown). Renews the lease. call_id: of this very call, so '
    'that it can be made again after a lost reply. ONC18: the lease is lost. Lease protocol version 1.';
revoke execute on function oncely.begin_step from public;

-- from functions/checkpoint.sql
create or replace function oncely.checkpoint(
    tenant text,
    consumer text,
    key text,
    token bigint,
    step text,
    result jsonb default null,
    in_transaction boolean default false,
    lease interval default interval '30 seconds'
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    known jsonb;
begin
    perform oncely.check_argument('step', step);
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    perform oncely.check_json(
        'result', result, 'Keep what is large in a table of your own, and let its id be the result.'
    );
    held := oncely.hold_lease(tenant, consumer, key, token);
    if oncely.is_held(held.owner, held.fencing_token, token) then
        known := held.steps -> step;
        if known ->> 'state' = 'done' then
            -- A repeated report of an external call with the same result succeeds (its reply was lost). Writes of this
            -- transaction would happen a second time.
            if in_transaction or known -> 'result' is distinct from coalesce(result, 'null') then
                raise exception using errcode = 'ONC21', message = 'oncely: this step is done already',
                    hint = 'Roll back; oncely.claim_lease and oncely.begin_step say its result.';
            end if;
            return;
        end if;
        if not in_transaction and (known ->> 'state' = 'started') is not true then
            raise exception using errcode = 'ONC21', message = 'oncely: this step has not begun',
                hint = 'oncely.begin_step comes before the call. A step whose effect is in this very transaction needs '
                    'no beginning: in_transaction => true.';
        end if;
        perform oncely.check_steps(held.steps, known is null and in_transaction);
    else
        known := held.steps -> step;
        -- The caller repeats the call after a lost reply.
        if not in_transaction and known ->> 'state' = 'done' and (known ->> 'token')::bigint = token
            and known -> 'result' is not distinct from coalesce(result, 'null')
        then
            return;
        end if;
        held := oncely.hold_in_doubt(tenant, consumer, key, token);
        known := held.steps -> step;
        if in_transaction or (known ->> 'state' in ('started', 'open')) is not true
            or (known ->> 'token')::bigint <> token
        then
            perform oncely.lease_is_lost();
        end if;
    end if;
    known := jsonb_strip_nulls(jsonb_build_object(
        'state', 'done', 'round', coalesce((known ->> 'round')::integer, 0), 'token', token, 'started_at',
        known -> 'started_at', 'done_at', clock_timestamp()
    )) || jsonb_build_object('result', result);
    perform oncely.store_step(held, step, known, token, lease);
end
$$;
comment on function oncely.checkpoint is
    'Stores the result of a step: no later run calls it again. in_transaction: the step''s effect is written in this '
    'very transaction, so it needs no oncely.begin_step. Renews the lease. A run whose lease is over stores the '
    'result of its call, too, until another run repeats that call. ONC18: the lease is lost, ONC21: the step '
    'has not begun, or is done. Lease protocol version 1.';
revoke execute on function oncely.checkpoint from public;

-- from functions/refuse_step.sql
create or replace function oncely.refuse_step(
    tenant text, consumer text, key text, token bigint, step text, error text default null,
    round integer default null, lease interval default interval '30 seconds', call_id uuid default null
) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    known jsonb;
    next_round integer;
begin
    perform oncely.check_argument('step', step);
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    held := oncely.hold_lease(tenant, consumer, key, token);
    known := held.steps -> step;
    -- The caller repeats the call after a lost reply.
    if (known ->> 'token')::bigint = token and (
        known ->> 'state' = 'refused' and ((known ->> 'round')::integer <> round + 1) is not true
        or known ->> 'state' = 'open' and known ? 'repeated' and not known ? 'allowed'
    ) then
        return (known ->> 'round')::integer;
    end if;
    if oncely.is_held(held.owner, held.fencing_token, token) then
        -- The call is repeated, or is about an earlier round.
        if (known ->> 'state' in ('refused', 'open') and (known ->> 'token')::bigint = token)
            or (known ->> 'round')::integer > round
        then
            return (known ->> 'round')::integer;
        end if;
        -- The step began by another call.
        if call_id is not null
            and (known ->> 'state' = 'started' and known ->> 'call_id' = call_id::text) is not true
        then
            return coalesce((known ->> 'round')::integer, 0);
        end if;
        if (known ->> 'state' = 'started') is not true then
            raise exception using errcode = 'ONC21', message = 'oncely: this step has not begun, or is done';
        end if;
    else
        held := oncely.hold_in_doubt(tenant, consumer, key, token);
        known := held.steps -> step;
        if (known ->> 'state' in ('started', 'open')) is not true or (known ->> 'token')::bigint <> token
            or (known ->> 'round')::integer <> round or (known ? 'repeated' and not known ? 'allowed')
            or (call_id is not null and known ->> 'call_id' is distinct from call_id::text)
        then
            perform oncely.lease_is_lost();
        end if;
    end if;
    -- The refused call is a repeated one: that says nothing of the first, which may have happened, so its key stays,
    -- and so does an operator's leave to repeat it. If the other side was asked instead, the token is an older one.
    if (known ->> 'token')::bigint = token and known ? 'repeated' then
        if known ? 'allowed' then
            known := known - '{allowed,call_id,doubted_by}'::text[] || jsonb_build_object('state', 'open');
            perform oncely.store_step(held, step, known, token, lease);
        end if;
        return (known ->> 'round')::integer;
    end if;
    next_round := (known ->> 'round')::integer + 1;
    known := jsonb_strip_nulls(jsonb_build_object(
        'state', 'refused', 'round', next_round, 'token', token, 'error', left(error, 1000)
    ));
    perform oncely.store_step(held, step, known, token, lease);
    return next_round;
end
$$;
comment on function oncely.refuse_step is
    'Says that a step that began did certainly not happen. It may begin again, in the next round, under another '
    'call_key: some sides answer a key that they refused with the same refusal for ever. Returns that round. Where '
    'begin_step said repeat, the refusal says nothing of the earlier call: round and state stay. call_id instead of '
    'round: no call was made because the reply to begin_step was lost. Renews the lease. '
    'ONC18: the lease is lost, ONC21: no such step begun. Lease protocol version 1.';
revoke execute on function oncely.refuse_step from public;

-- end of functions
