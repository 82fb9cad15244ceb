create or replace function oncely.free_keys(tenants text[], letters uuid[], repeat_unknown boolean default false)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz := clock_timestamp();
    freed bigint;
begin
    with given_up as materialized (
        select i.tenant, i.consumer, i.key,
            -- The retention of the key starts again.
            oncely.bounded(at + (i.expires_at - i.completed_at)) as expires_at,
            case when i.reason = 'outcome_unknown' then oncely.reopen_steps(i.steps, true) else i.steps end as steps
        from unnest(tenants, letters) as l (tenant, id)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
        join oncely.idempotency_keys as i on i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
        -- oncely.decide_letters has recorded the requeue.
        where oncely.in_group(d.tenant, tenants) and oncely.in_group(i.tenant, tenants)
          and d.state = 'requeueing' and i.status = 'FAILED'
          and coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true)
          and (free_keys.repeat_unknown or i.reason <> 'outcome_unknown')
        order by i.tenant, i.consumer, i.key
        for update of i
    )
    update oncely.idempotency_keys as i
    set status = 'IN_PROGRESS', attempts = 0, crash_attempts = 0, completed_at = null, reason = null, error_code = null,
        not_before = at, expires_at = g.expires_at, steps = g.steps
    from given_up as g
    where oncely.in_group(i.tenant, tenants) and i.tenant = g.tenant and i.consumer = g.consumer and i.key = g.key;
    get diagnostics freed = row_count;
    return freed;
end
$$;
comment on function oncely.free_keys is
    'Makes the keys of dead letters that are being requeued runnable again: only where a key was given up, with this '
    'very payload; with repeat_unknown also what was given up as outcome_unknown, whose call outside may then happen '
    'again. The one way from a final state back to IN_PROGRESS, but for settle_claim. For operators.';
revoke execute on function oncely.free_keys from public;
