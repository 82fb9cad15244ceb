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
