create or replace function oncely.list_retentions(at timestamptz, of_tenants text[])
returns table (tenant text, consumer text, retention interval)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select t.tenant, c.consumer, oncely.tenant_retention(
        at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until), c.redelivery_horizon,
        e.mirror_ttl, l.retention, l.former_retention, l.former_until
    )
    from unnest(of_tenants) as t (tenant)
    cross join oncely.consumers as c
    cross join oncely.cell as e
    left join oncely.tenant_limits as l on l.tenant = t.tenant
    where visible is null or t.tenant = any (visible);
end
$$;
comment on function oncely.list_retentions is
    'For how long keys of tenants are kept, by consumer, pauses left aside. For operators and auditors; a member of '
    'oncely_tenant_auditor is told of its tenants.';
revoke execute on function oncely.list_retentions from public;
