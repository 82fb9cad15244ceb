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
