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
