create or replace function oncely.resolve_unknown(held oncely.idempotency_keys, step text, known jsonb, token bigint)
returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    all_steps jsonb := held.steps || jsonb_build_object(step, known);
    is_open boolean := oncely.steps_begun(held.steps || jsonb_build_object(step, known)) is null;
begin
    update oncely.idempotency_keys as i
    set steps = all_steps,
        -- It runs again, and goes on behind the step.
        status = case when is_open then 'IN_PROGRESS' else i.status end,
        completed_at = case when not is_open then i.completed_at end,
        reason = case when not is_open then i.reason end,
        last_error = case when not is_open then i.last_error end,
        error_code = case when not is_open then i.error_code end
    where i.tenant = held.tenant and i.consumer = held.consumer and i.key = held.key;
    insert into oncely.audit (tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker, login)
    values (
        held.tenant, clock_timestamp(), held.attempts, held.consumer, held.key, '', 'fenced',
        format(
            'lost the lease %s, and knows what became of its call all the same: %s is %s', token, step,
            known ->> 'state'
        ),
        oncely.worker_name(null), session_user
    );
end
$$;
comment on function oncely.resolve_unknown is
    'Stores what became of a step of a key that was given up as outcome_unknown; where that was the last one of which '
    'nobody knew, the key may run again.';
revoke execute on function oncely.resolve_unknown from public;
