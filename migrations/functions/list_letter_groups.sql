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
declare
    visible constant text[] := oncely.visible_tenants();
begin
    -- Groups the newest 100,000 that match. Reads the last letter's detail only for groups that are returned.
    return query
    with groups as (
        select n.consumer, n.failure_group, n.reason, n.error_code,
            count(*) filter (where n.state = 'waiting') as waiting,
            count(*) filter (where n.state = 'requeueing') as requeueing,
            count(*) filter (where n.state = 'requeued') as requeued,
            count(*) filter (where n.state = 'discarded') as discarded,
            count(*) filter (where n.state in ('waiting', 'requeueing') and n.generation > 1) as came_back,
            min(n.dead_lettered_at) as first_at,
            max(n.dead_lettered_at) as last_at
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
    )
    select g.consumer, g.failure_group, g.reason, g.error_code,
        (
            select d.detail from oncely.dead_letters as d
            where d.dead_lettered_at = g.last_at and d.consumer = g.consumer and d.failure_group = g.failure_group
                and d.reason = g.reason and d.error_code is not distinct from g.error_code
                and (visible is null or d.tenant = any (visible))
                and (of_tenant is null or d.tenant = of_tenant)
            limit 1
        ),
        g.waiting, g.requeueing, g.requeued, g.discarded, g.came_back, oncely.bounded(g.first_at),
        oncely.bounded(g.last_at)
    from groups as g
    order by g.waiting + g.requeueing desc, g.last_at desc;
end
$$;
comment on function oncely.list_letter_groups is
    'Dead letters by what failed alike, those that wait most first. For operators and auditors; a member of '
    'oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_letter_groups from public;
