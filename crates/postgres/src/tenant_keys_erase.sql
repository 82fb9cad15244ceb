-- Deletes up to $2 keys of a tenant ($1): all ($3), or those that may be forgotten at $4 once its letters are closed.
-- Returns the keys, so that their tags can be removed from the mirror. Keys held by a run stay.
with due as materialized (
    select i.tenant, i.consumer, i.key
    from oncely.idempotency_keys as i
    cross join oncely.maintenance as u
    cross join oncely.cell as e
    left join oncely.consumers as c on c.consumer = i.consumer
    left join oncely.tenant_limits as l on l.tenant = i.tenant
    -- Uses the clock as far as it is explained.
    cross join lateral (select least(u.clock_seen_at, $4) as now) as n
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
        and case
            when $3 then (i.owner is not null and i.not_before > $4) is not true
            else oncely.may_be_forgotten(
                i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
                i.fencing_token, n.now, oncely.forgotten_before(n.now, m.retention, coalesce(c.paused, '{}')),
                (select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q), true
            )
        end
    order by i.consumer, i.key
    limit $2
    for update of i skip locked
)
delete from oncely.idempotency_keys as i
using due as d
where i.tenant = $1 and i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
returning i.consumer, i.key, i.fingerprint
