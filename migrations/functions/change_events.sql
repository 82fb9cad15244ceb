create or replace function oncely.change_events(
    verb text, at timestamptz, tenants text[], ids uuid[], state text, filter jsonb, reason text, os_user text
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    free_tenants text[];
    free_ids uuid[];
begin
    if coalesce(change_events.verb, '') not in ('retry_events', 'discard_events') then
        raise exception using errcode = 'ONC11',
            message = 'oncely: events are changed by retry_events and discard_events';
    end if;
    -- Skips events that a relay holds, because it is publishing them.
    select coalesce(array_agg(f.tenant), '{}'), coalesce(array_agg(f.id), '{}') into free_tenants, free_ids
    from (
        select e.tenant, e.id
        from unnest(change_events.tenants, change_events.ids) as m (tenant, id)
        join oncely.events as e on e.tenant = m.tenant and e.id = m.id
        where oncely.in_group(e.tenant, change_events.tenants)
            and (change_events.state is null or e.state = change_events.state)
        for update of e skip locked
    ) as f;
    if change_events.verb = 'discard_events' then
        delete from oncely.events as e
        using unnest(free_tenants, free_ids) as f (tenant, id)
        where oncely.in_group(e.tenant, free_tenants) and e.tenant = f.tenant and e.id = f.id;
    else
        update oncely.events as e
        set state = 'pending', attempts = 0, available_at = change_events.at
        from unnest(free_tenants, free_ids) as f (tenant, id)
        where oncely.in_group(e.tenant, free_tenants) and e.tenant = f.tenant and e.id = f.id;
    end if;
    perform oncely.record_action(
        case when free_tenants[1] = all (free_tenants) then coalesce(free_tenants[1], '') else '' end,
        change_events.verb, change_events.filter, cardinality(free_ids), change_events.reason, change_events.os_user
    );
    return cardinality(free_ids);
end
$$;
comment on function oncely.change_events is
    'Makes events due as if they had never failed (retry_events), or deletes them (discard_events), and records it in '
    'operator_actions. Leaves alone what a relay holds. Returns how many it was done to. For operators.';
revoke execute on function oncely.change_events from public;
