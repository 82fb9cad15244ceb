-- Spreads the tables over the nodes of a Citus cluster, on its coordinator, in one transaction: tables with tenants by
-- tenant, together with a table of the user's where one is named; the others as a copy on each node. What is spread
-- already stays as it is. Settings: oncely.shards, oncely.colocate_with (empty: none).
do $distribute$
declare
    relation regclass;
    routine regprocedure;
    beside text := nullif(current_setting('oncely.colocate_with', true), '');
    -- Read by functions about a tenant of any node.
    everywhere constant text[] := array['rights', 'tenant_limits'];
begin
    perform set_config('citus.shard_count', current_setting('oncely.shards'), true);
    -- One connection to each node: later statements see what earlier ones made there.
    perform set_config('citus.multi_shard_modify_mode', 'sequential', true);
    for relation in
        select c.oid::regclass
        from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and not exists (select from pg_dist_partition as d where d.logicalrelid = c.oid)
            and (
                c.relname = any (everywhere)
                or not exists (select from pg_attribute as a where a.attrelid = c.oid and a.attname = 'tenant')
            )
        order by c.relname
    loop
        perform create_reference_table(relation);
    end loop;
    for relation in
        select c.oid::regclass
        from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and not exists (select from pg_dist_partition as d where d.logicalrelid = c.oid)
        -- The keys first: the others lie beside them.
        order by c.relname <> 'idempotency_keys', c.relname
    loop
        perform create_distributed_table(
            relation, 'tenant',
            colocate_with => case
                when relation <> 'oncely.idempotency_keys'::regclass then 'oncely.idempotency_keys'
                else coalesce(beside, 'none')
            end
        );
    end loop;
    -- Functions whose arguments are rows of a table were made before the table was known to the nodes.
    perform create_distributed_function(p.oid::regprocedure)
    from pg_proc as p
    where p.pronamespace = 'oncely'::regnamespace
        and not exists (
            select from pg_catalog.pg_dist_object as d where d.classid = 'pg_proc'::regclass and d.objid = p.oid
        );
    -- A node gets a function with the rights that were granted, but not without the one that PostgreSQL grants to all.
    for routine in
        select p.oid::regprocedure
        from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace and p.proacl is not null
            and not exists (select from aclexplode(p.proacl) as a where a.grantee = 0)
    loop
        execute format('revoke execute on function %s from public', routine);
    end loop;
end
$distribute$;

-- The units of a server are the shards that it keeps: one of each table, with the same range of tenants.
create or replace function oncely.units(out unit text, out tables jsonb) returns setof record
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select s.shardminvalue, jsonb_object_agg(c.relname, shard_name(s.logicalrelid, s.shardid))
    from pg_dist_shard as s
    join pg_dist_placement as p on p.shardid = s.shardid
    join pg_class as c on c.oid = s.logicalrelid
    where p.groupid = (select l.groupid from pg_dist_local_group as l)
        and c.relnamespace = 'oncely'::regnamespace
        and c.relname in ('idempotency_keys', 'mirror_queue', 'events', 'dead_letters', 'ordering_keys')
    group by s.shardminvalue
$$;

create or replace function oncely.in_group(tenant text, tenants text[]) returns boolean
language sql immutable
begin atomic
    select tenant = any (tenants);
end;

create or replace function oncely.tenant_groups(tenants text[]) returns setof text[]
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select array_agg(g.tenant)
    from (
        select distinct t.tenant, get_shard_id_for_distribution_column('oncely.idempotency_keys', t.tenant) as shard
        from unnest(tenants) as t (tenant)
    ) as g
    group by g.shard
    order by g.shard
$$;

create or replace function oncely.tenant_nodes(
    tenants text[], out tenant text, out node integer, out host text, out port integer
) returns setof record
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    select t.tenant, n.groupid, n.nodename, n.nodeport
    from (select distinct u.tenant from unnest(tenants) as u (tenant)) as t
    join pg_dist_placement as p
        on p.shardid = get_shard_id_for_distribution_column('oncely.idempotency_keys', t.tenant)
    join pg_dist_node as n on n.groupid = p.groupid and n.noderole = 'primary' and n.isactive
$$;

-- Called for rows of a shard, it reads letters of the same tenant, which lie in a shard of the same node.
alter function oncely.may_be_forgotten set citus.allow_nested_distributed_execution = on;
