create or replace function oncely.list_letter_groups(
    of_tenant text default null, of_consumer text default null, of_queue text default null,
    of_reason text default null, of_group text default null, of_key text default null,
    since timestamptz default null, until timestamptz default null, most bigint default 100
)
returns table (
    consumer text, failure_group text, reason text, error_code text, detail text, waiting bigint, requeueing bigint,
    requeued bigint, discarded bigint, came_back bigint, first_at timestamptz, last_at timestamptz
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
#variable_conflict use_variable
declare
    visible constant text[] := oncely.visible_tenants();
begin
    -- Groups the newest 100,000 that match. Reads the last letter's detail only for groups that are returned.
    for consumer, failure_group, reason, error_code, waiting, requeueing, requeued, discarded, came_back, first_at,
        last_at in
        select n.consumer, n.failure_group, n.reason, n.error_code,
            count(*) filter (where n.state = 'waiting'), count(*) filter (where n.state = 'requeueing'),
            count(*) filter (where n.state = 'requeued'), count(*) filter (where n.state = 'discarded'),
            count(*) filter (where n.state in ('waiting', 'requeueing') and n.generation > 1),
            min(n.dead_lettered_at), max(n.dead_lettered_at)
        from (
            select d.consumer, d.failure_group, d.reason, d.error_code, d.state, d.generation, d.dead_lettered_at
            from oncely.dead_letters as d
            where (visible is null or d.tenant = any (visible))
                and (of_tenant is null or d.tenant = of_tenant)
                and (of_consumer is null or d.consumer = of_consumer)
                and (of_queue is null or d.queue = of_queue)
                and (of_reason is null or d.reason = of_reason)
                and (of_group is null or d.failure_group = of_group)
                and (of_key is null or (hashtextextended(d.key, 0) = hashtextextended(of_key, 0) and d.key = of_key))
                and (since is null or d.dead_lettered_at >= since)
                and (until is null or d.dead_lettered_at < until)
            order by d.dead_lettered_at desc
            limit 100000
        ) as n
        group by n.consumer, n.failure_group, n.reason, n.error_code
        order by count(*) filter (where n.state in ('waiting', 'requeueing')) desc, max(n.dead_lettered_at) desc
        limit most
    loop
        select d.detail into detail
        from oncely.dead_letters as d
        where d.dead_lettered_at = last_at and d.consumer = list_letter_groups.consumer
            and d.failure_group = list_letter_groups.failure_group and d.reason = list_letter_groups.reason
            and d.error_code is not distinct from list_letter_groups.error_code
            and (visible is null or d.tenant = any (visible))
            and (of_tenant is null or d.tenant = of_tenant)
        limit 1;
        first_at := oncely.bounded(first_at);
        last_at := oncely.bounded(last_at);
        return next;
    end loop;
end
$$;
comment on function oncely.list_letter_groups is
    'Dead letters by what failed alike, those that wait most first. For operators and auditors; a member of '
    'oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_letter_groups from public;
