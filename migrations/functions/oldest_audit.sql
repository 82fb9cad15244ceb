create or replace function oncely.oldest_audit(since timestamptz default null, until timestamptz default null)
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return (
        select oncely.bounded(min(a.occurred_at)) from oncely.audit as a
        where a.occurred_at >= coalesce(since, '-infinity') and a.occurred_at < coalesce(until, 'infinity')
            and (visible is null or a.tenant = any (visible))
    );
end
$$;
comment on function oncely.oldest_audit is
    'When the oldest decision of a span was taken; rows as oncely.list_audit shows them.';
revoke execute on function oncely.oldest_audit from public;
