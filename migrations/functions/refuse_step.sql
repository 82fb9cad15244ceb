create or replace function oncely.refuse_step(
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
