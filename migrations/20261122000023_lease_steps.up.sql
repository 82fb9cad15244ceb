set local search_path = pg_catalog, pg_temp;

-- What a run under a lease calls outside, in the key's own row (steps): begun, then done or refused.

create function oncely.check_steps(steps jsonb, is_new boolean) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if is_new and (select count(*) from jsonb_object_keys(steps)) >= 100 then
        raise exception using errcode = 'ONC15', message = 'oncely: the key has 100 steps, and may have no more';
    end if;
    -- The row is written anew with each step. Asked before a call, and never when its result is to be stored.
    if is_new and octet_length(steps::text) > 1048576 then
        raise exception using errcode = 'ONC15', message = 'oncely: the steps of the key have more than 1048576 bytes';
    end if;
end
$$;
comment on function oncely.check_steps is 'Refuses a step too many (SQLSTATE ONC15).';

-- From the first call on, and a tenth less than the other side says: its clock is not ours. A call of tomorrow was
-- noted by a clock that was ahead, and nobody knows when it was.
create function oncely.may_repeat(rule text, period interval, started_at timestamptz, at timestamptz) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        rule = 'always' or (rule = 'within' and started_at <= at and at < started_at + period * 0.9), false
    )
$$;
comment on function oncely.may_repeat is 'May a step be called again that may have happened?';

-- Each language can compute it for itself; a test compares them.
create function oncely.step_key(tenant text, consumer text, key text, step text, round integer default 0) returns uuid
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select encode(
        set_byte(
            set_byte(d.digest, 6, (get_byte(d.digest, 6) & 15) | 128), 8, (get_byte(d.digest, 8) & 63) | 128
        ), 'hex'
    )::uuid
    from (
        select substr(
            sha256(
                string_agg(int4send(octet_length(p.part)) || convert_to(p.part, 'UTF8'), '' order by p.place)
                || int4send(round)
            ), 1, 16
        ) as digest
        from (values (1, tenant), (2, consumer), (3, key), (4, step)) as p (place, part)
    ) as d
$$;
comment on function oncely.step_key is
    'The key of a step for the other side, the same in every run and language: a UUID of version 8, of SHA-256 over '
    'tenant, consumer, key and step (UTF-8, each after its length in four bytes, most significant first) and the '
    'round (four bytes).';

create function oncely.begin_step(
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
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
    at timestamptz;
    known jsonb;
    said_again boolean;
begin
    perform oncely.check_argument('step', begin_step.step);
    perform oncely.check_lease_time('lease', begin_step.lease, interval '1 second', interval '1 day');
    if begin_step.repeat is null or begin_step.repeat not in ('always', 'within', 'ask', 'never') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether a step may be called again is always, within, ask or never';
    end if;
    if (begin_step.repeat = 'within') <> (begin_step."window" is not null) then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a window belongs to the rule within, and to no other',
            hint = 'It is how long the other side knows a key again, such as interval ''24 hours''.';
    end if;
    if begin_step."window" is not null then
        perform oncely.check_lease_time('window', begin_step."window", interval '1 second', interval '3650 days');
    end if;
    held := oncely.hold_lease(begin_step.tenant, begin_step.consumer, begin_step.key, begin_step.token);
    at := clock_timestamp();
    -- Past its time a run begins nothing any more, though nobody has taken the key over yet.
    if not oncely.is_held(held, begin_step.token) or held.run_ends_at <= at then
        perform oncely.lease_is_lost();
    end if;
    known := held.steps -> begin_step.step;
    round := coalesce((known ->> 'round')::integer, 0);
    call_key := oncely.step_key(begin_step.tenant, begin_step.consumer, begin_step.key, begin_step.step, round);
    case coalesce(known ->> 'state', 'new')
        when 'done' then
            state := 'done';
            result := known -> 'result';
        when 'started' then
            -- The reply to this very call was lost: the call outside was not made.
            said_again := coalesce(
                known ->> 'call_id' = begin_step.call_id::text and (known ->> 'token')::bigint = begin_step.token, false
            );
            state := case
                when said_again then case when known ? 'allowed' then 'repeat' else 'run' end
                -- By the rule under which it was called, and by that of now: a program may have changed its mind.
                when oncely.may_repeat(
                    begin_step.repeat, begin_step."window", (known ->> 'started_at')::timestamptz, at
                )
                and oncely.may_repeat(
                    known ->> 'repeat', (known ->> 'window')::interval, (known ->> 'started_at')::timestamptz, at
                )
                then 'repeat'
                else 'unknown'
            end;
            -- started_at stays: it is when the first call may have gone out.
            if state = 'repeat' and not said_again then
                known := known - '{call_id,allowed}'::text[]
                    || jsonb_build_object('token', begin_step.token, 'repeated', true);
            end if;
        when 'open' then
            -- It may have happened, and an operator allows one more call, whatever the rule: a repeated one.
            state := 'repeat';
            known := known || jsonb_build_object(
                'state', 'started', 'token', begin_step.token, 'call_id', begin_step.call_id, 'repeated', true,
                'allowed', true
            );
        else
            perform oncely.check_steps(held.steps, known is null);
            state := 'run';
            known := jsonb_strip_nulls(jsonb_build_object(
                'state', 'started', 'round', round, 'token', begin_step.token, 'started_at', at, 'call_id',
                begin_step.call_id, 'repeat', begin_step.repeat, 'window', begin_step."window"
            ));
    end case;
    update oncely.idempotency_keys as i
    set not_before = oncely.lease_end(i.not_before, begin_step.lease, i.run_ends_at),
        steps = coalesce(i.steps, '{}') || jsonb_build_object(begin_step.step, known)
    where i.tenant = begin_step.tenant and i.consumer = begin_step.consumer and i.key = begin_step.key;
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

create function oncely.checkpoint(
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
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
    known jsonb;
begin
    perform oncely.check_argument('step', checkpoint.step);
    perform oncely.check_lease_time('lease', checkpoint.lease, interval '1 second', interval '1 day');
    if octet_length(checkpoint.result::text) > oncely.json_limit(checkpoint.result) then
        raise exception using errcode = 'ONC15',
            message = format(
                'oncely: the result has %s bytes; 65536 are allowed', octet_length(checkpoint.result::text)
            ),
            hint = 'Keep what is large in a table of your own, and let its id be the result.';
    end if;
    held := oncely.hold_lease(checkpoint.tenant, checkpoint.consumer, checkpoint.key, checkpoint.token);
    if not oncely.is_held(held, checkpoint.token) then
        held := oncely.hold_unknown(checkpoint.tenant, checkpoint.consumer, checkpoint.key, checkpoint.token);
        known := held.steps -> checkpoint.step;
        if checkpoint.in_transaction or (known ->> 'state' = 'started') is not true
            or (known ->> 'token')::bigint <> checkpoint.token
        then
            perform oncely.lease_is_lost();
        end if;
        perform oncely.resolve_unknown(
            held, checkpoint.step,
            jsonb_strip_nulls(jsonb_build_object(
                'state', 'done', 'round', known -> 'round', 'token', checkpoint.token, 'started_at',
                known -> 'started_at', 'done_at', clock_timestamp()
            )) || jsonb_build_object('result', checkpoint.result), checkpoint.token
        );
        return;
    end if;
    known := held.steps -> checkpoint.step;
    if known ->> 'state' = 'done' then
        -- Of a call outside it says what was said before, by a reply that was lost. What is written in this
        -- transaction would be written a second time.
        if checkpoint.in_transaction or known -> 'result' is distinct from coalesce(checkpoint.result, 'null') then
            raise exception using errcode = 'ONC21', message = 'oncely: this step is done already',
                hint = 'Roll back; oncely.claim_lease and oncely.begin_step say its result.';
        end if;
        return;
    end if;
    if not checkpoint.in_transaction and (known ->> 'state' = 'started') is not true then
        raise exception using errcode = 'ONC21', message = 'oncely: this step has not begun',
            hint = 'oncely.begin_step comes before the call. A step whose effect is in this very transaction needs no '
                'beginning: in_transaction => true.';
    end if;
    perform oncely.check_steps(held.steps, known is null and checkpoint.in_transaction);
    known := jsonb_strip_nulls(jsonb_build_object(
        'state', 'done', 'round', coalesce((known ->> 'round')::integer, 0), 'token', checkpoint.token, 'started_at',
        known -> 'started_at', 'done_at', clock_timestamp()
    )) || jsonb_build_object('result', checkpoint.result);
    update oncely.idempotency_keys as i
    set not_before = oncely.lease_end(i.not_before, checkpoint.lease, i.run_ends_at),
        steps = coalesce(i.steps, '{}') || jsonb_build_object(checkpoint.step, known)
    where i.tenant = checkpoint.tenant and i.consumer = checkpoint.consumer and i.key = checkpoint.key;
end
$$;
comment on function oncely.checkpoint is
    'Stores the result of a step: no later run calls it again. in_transaction: the step''s effect is written in this '
    'very transaction, so it needs no oncely.begin_step. Renews the lease. ONC18: the lease is lost, ONC21: the step '
    'has not begun, or is done. Lease protocol version 1.';
revoke execute on function oncely.checkpoint from public;

create function oncely.refuse_step(
    tenant text, consumer text, key text, token bigint, step text, error text default null,
    round integer default null, lease interval default interval '30 seconds'
) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
    known jsonb;
    next_round integer;
begin
    perform oncely.check_argument('step', refuse_step.step);
    perform oncely.check_lease_time('lease', refuse_step.lease, interval '1 second', interval '1 day');
    held := oncely.hold_lease(refuse_step.tenant, refuse_step.consumer, refuse_step.key, refuse_step.token);
    if not oncely.is_held(held, refuse_step.token) then
        held := oncely.hold_unknown(refuse_step.tenant, refuse_step.consumer, refuse_step.key, refuse_step.token);
        known := held.steps -> refuse_step.step;
        -- Of a repeated call it says nothing of the first.
        if (known ->> 'state' = 'started') is not true or (known ->> 'token')::bigint <> refuse_step.token
            or known ? 'repeated' or (known ->> 'round')::integer <> refuse_step.round
        then
            perform oncely.lease_is_lost();
        end if;
        next_round := (known ->> 'round')::integer + 1;
        perform oncely.resolve_unknown(
            held, refuse_step.step,
            jsonb_strip_nulls(jsonb_build_object(
                'state', 'refused', 'round', next_round, 'token', refuse_step.token, 'error',
                left(refuse_step.error, 1000)
            )), refuse_step.token
        );
        return next_round;
    end if;
    known := held.steps -> refuse_step.step;
    -- Said again, after a lost reply; or of a round that is over.
    if (known ->> 'state' in ('refused', 'open') and (known ->> 'token')::bigint = refuse_step.token)
        or (known ->> 'round')::integer > refuse_step.round
    then
        return (known ->> 'round')::integer;
    end if;
    if (known ->> 'state' = 'started') is not true then
        raise exception using errcode = 'ONC21', message = 'oncely: this step has not begun, or is done';
    end if;
    -- The call that was refused is a repeated one: that says nothing of the first, which may have happened, so its key
    -- stays, and so does an operator's leave to repeat it. Where the other side was asked instead, the token is an
    -- older one.
    if (known ->> 'token')::bigint = refuse_step.token and known ? 'repeated' then
        if known ? 'allowed' then
            update oncely.idempotency_keys as i
            set steps = i.steps || jsonb_build_object(
                refuse_step.step, known - '{allowed,call_id}'::text[] || jsonb_build_object('state', 'open')
            )
            where i.tenant = refuse_step.tenant and i.consumer = refuse_step.consumer and i.key = refuse_step.key;
        end if;
        return (known ->> 'round')::integer;
    end if;
    next_round := (known ->> 'round')::integer + 1;
    update oncely.idempotency_keys as i
    set not_before = oncely.lease_end(i.not_before, refuse_step.lease, i.run_ends_at),
        steps = i.steps || jsonb_build_object(refuse_step.step, jsonb_strip_nulls(jsonb_build_object(
            'state', 'refused', 'round', next_round, 'token', refuse_step.token, 'error', left(refuse_step.error, 1000)
        )))
    where i.tenant = refuse_step.tenant and i.consumer = refuse_step.consumer and i.key = refuse_step.key;
    return next_round;
end
$$;
comment on function oncely.refuse_step is
    'Says that a step that began did certainly not happen. It may begin again, in the next round, under another '
    'call_key: some sides answer a key that they refused with the same refusal for ever. Returns that round. Where '
    'begin_step said repeat, the refusal says nothing of the earlier call: round and state stay. Renews the lease. '
    'ONC18: the lease is lost, ONC21: no such step begun. Lease protocol version 1.';
revoke execute on function oncely.refuse_step from public;
