-- Counts the data of a tenant ($1) at a time ($2). Of its keys, counts those that may not be forgotten yet once its
-- letters are closed, and returns when the last of them may; a parked key has no end until its message has come.
with remembered as (
    select case
            when i.expires_at is null
                then greatest(i.completed_at, i.created_at, i.not_before, to_timestamp(i.fencing_token / 1000000.0))
            else i.created_at
        end as at,
        m.retention,
        i.reason = 'parked' and not exists (
            select from oncely.dead_letters as d
            where d.tenant = i.tenant and d.consumer = i.consumer and d.key = i.key
                and hashtextextended(d.key, 0) = hashtextextended(i.key, 0)
        ) or not oncely.may_be_forgotten(
            i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
            i.fencing_token, n.now, oncely.forgotten_before(n.now, m.retention, coalesce(c.paused, '{}')),
            (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q), true
        ) as is_young
    from oncely.idempotency_keys as i
    cross join oncely.maintenance as u
    cross join oncely.cell as e
    left join oncely.consumers as c on c.consumer = i.consumer
    left join oncely.tenant_limits as l on l.tenant = i.tenant
    -- Uses the clock as far as it is explained.
    cross join lateral (select least(u.clock_seen_at, $2) as now) as n
    cross join lateral (
        select coalesce(
            i.expires_at - i.created_at,
            oncely.tenant_retention(
                n.now, oncely.effective_retention(n.now, c.retention, c.former_retention, c.former_until),
                c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
            )
        ) as retention
    ) as m
    where i.tenant = $1
), young as (
    select r.at + r.retention as ends
    from remembered as r
    where r.is_young
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
    -- Counts the live processes that name the tenant in their last failure.
    (
        select count(*) from oncely.processes as p
        where jsonb_path_exists(p.consumers, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
    ) as "processes!"
