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
