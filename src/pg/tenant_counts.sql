-- What there is of a tenant ($1) at a time ($2). Of its keys those that are not past their retention yet, as the collection reckons it, and
-- when the last of them will be; one that was parked, and whose message has not come, has no end.
with remembered as (
    select case when i.expires_at is null then coalesce(i.completed_at, i.created_at) else i.created_at end as at,
        coalesce(
            i.expires_at - i.created_at,
            oncely.tenant_retention(
                least(u.clock_seen_at, $2),
                oncely.effective_retention(
                    least(u.clock_seen_at, $2), c.retention, c.former_retention, c.former_until
                ),
                c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
            )
        ) as retention,
        coalesce(c.paused, '{}') as paused,
        i.reason = 'parked' and not exists (
            select from oncely.dead_letters as d
            where d.tenant = i.tenant and d.consumer = i.consumer and d.key = i.key
                and hashtextextended(d.key, 0) = hashtextextended(i.key, 0)
        ) as is_awaited
    from oncely.idempotency_keys as i
    cross join oncely.maintenance as u
    cross join oncely.cell as e
    left join oncely.consumers as c on c.consumer = i.consumer
    left join oncely.tenant_limits as l on l.tenant = i.tenant
    where i.tenant = $1
), young as (
    select r.at + r.retention as ends
    from remembered as r
    cross join oncely.maintenance as u
    where r.is_awaited or coalesce(r.at > oncely.forgotten_before(least(u.clock_seen_at, $2), r.retention, r.paused), true)
)
select
    (select count(*) from remembered) as "keys!",
    (select count(*) from young) as "young_keys!",
    (select oncely.bounded(max(ends)) from young) as young_until,
    (select count(*) from oncely.audit as a where a.tenant = $1) as "trail!",
    (select count(*) from oncely.dead_letters as d where d.tenant = $1) as "letters!",
    (
        select count(*) from oncely.dead_letters as d
        where d.tenant = $1 and d.state in ('waiting', 'requeueing')
    ) as "open_letters!",
    (select count(*) from oncely.events as e where e.tenant = $1) as "events!",
    (select count(*) from oncely.ordering_keys as o where o.tenant = $1) as "ordering_keys!",
    (select count(*) from oncely.mirror_queue as m where m.tenant = $1) as "mirror_records!",
    (select count(*) from oncely.rights as r where r.tenant = $1) as "rights!",
    (select count(*) from oncely.tenant_limits as l where l.tenant = $1)
        + (select count(*) from oncely.letter_usage as u where u.tenant = $1)
        + (select count(*) from oncely.letter_growth as g where g.tenant = $1) as "limits!",
    (
        select count(*) from oncely.operator_actions as p
        where p.tenant = $1
            or jsonb_path_exists(p.filter, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
    ) as "actions!",
    -- The last failure that a live process tells of.
    (
        select count(*) from oncely.processes as p
        where jsonb_path_exists(p.consumers, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
    ) as "processes!"
