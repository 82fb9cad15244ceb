create or replace function oncely.count_audit(since timestamptz, until timestamptz, most bigint) returns bigint
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
        select count(*)
        from (
            select 1 from oncely.audit as a
            where a.occurred_at >= since and a.occurred_at < until and (visible is null or a.tenant = any (visible))
            limit most
        ) as c
    );
end
$$;
comment on function oncely.count_audit is
    'How many decisions of a span there are, counted up to a number; rows as oncely.list_audit shows them.';
revoke execute on function oncely.count_audit from public;
