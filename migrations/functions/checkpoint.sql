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
