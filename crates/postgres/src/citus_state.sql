with spread as (
    select d.logicalrelid as relation, d.partmethod = 'h' as is_distributed, d.colocationid,
        exists (
            select from pg_attribute as a where a.attrelid = d.logicalrelid and a.attname = 'tenant' and not a.attisdropped
        ) as has_tenant
    from pg_dist_partition as d
),
keys as (
    select s.colocationid from spread as s where s.relation = 'oncely.idempotency_keys'::regclass
),
shards as (
    select s.shardid, s.logicalrelid as relation,
        to_regclass(format('%s_%s', s.logicalrelid, s.shardid)) as shard
    from pg_dist_shard as s
    join pg_dist_placement as p on p.shardid = s.shardid
    join pg_class as c on c.oid = s.logicalrelid
    where c.relnamespace = 'oncely'::regnamespace and p.groupid = (select l.groupid from pg_dist_local_group as l)
)
select
    (select e.extversion from pg_extension as e where e.extname = 'citus'),
    (
        select coalesce(array_agg(c.oid::regclass::text order by c.oid::regclass::text), '{}')
        from pg_class as c
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
            and not exists (select from spread as s where s.relation = c.oid)
            and not exists (select from shards as s where s.shard = c.oid)
    ),
    (
        select coalesce(array_agg(s.relation::text order by s.relation::text), '{}')
        from spread as s
        where s.is_distributed and s.has_tenant and s.colocationid not in (select k.colocationid from keys as k)
    ),
    (select count(*) from shards),
    (
        select coalesce(array_agg(s.shard::text order by s.shardid), '{}')
        from shards as s
        where exists (
            select p.polname, p.polcmd, p.polpermissive, p.polroles, pg_get_expr(p.polqual, p.polrelid)
            from pg_policy as p where p.polrelid = s.relation
            except
            select p.polname, p.polcmd, p.polpermissive, p.polroles, pg_get_expr(p.polqual, p.polrelid)
            from pg_policy as p where p.polrelid = s.shard
        ) or exists (
            select from pg_class as t, pg_class as c
            where t.oid = s.relation and c.oid = s.shard and t.relrowsecurity and not c.relrowsecurity
        )
    ),
    (
        select count(*)
        from pg_prepared_xacts as x
        where x.database = current_database() and x.gid like 'citus%'
            and x.prepared < $1
    )
