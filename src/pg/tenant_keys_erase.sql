-- Deletes up to $2 keys of a tenant ($1): all ($3), or those that are past their retention at $4, as the collection reckons it. Says which,
-- so that their tags can be taken out of the mirror. What somebody holds stays.
-- Never one whose letter is being requeued, as in collect_completed.sql.
with due as materialized (
    select i.tenant, i.consumer, i.key
    from oncely.idempotency_keys as i
    cross join oncely.maintenance as u
    cross join oncely.cell as e
    left join oncely.consumers as c on c.consumer = i.consumer
    left join oncely.tenant_limits as l on l.tenant = i.tenant
    where i.tenant = $1
        and (
            $3
            or case when i.expires_at is null then coalesce(i.completed_at, i.created_at) else i.created_at end
                <= oncely.forgotten_before(
                    least(u.clock_seen_at, $4),
                    coalesce(
                        i.expires_at - i.created_at,
                        oncely.tenant_retention(
                            least(u.clock_seen_at, $4),
                            oncely.effective_retention(
                                least(u.clock_seen_at, $4), c.retention, c.former_retention, c.former_until
                            ),
                            c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
                        )
                    ),
                    coalesce(c.paused, '{}')
                )
        )
        and not (i.owner is not null and i.not_before > $4)
        -- As in collect_failed.sql.
        and (
            $3
            or i.fencing_token is null
            or i.status <> 'FAILED'
            or not exists (
                select from oncely.dead_letters as d
                where hashtextextended(d.key, 0) = hashtextextended(i.key, 0) and d.key = i.key and d.tenant = i.tenant
                    and d.consumer = i.consumer
            )
        )
        and not exists (
            select from oncely.dead_letters as d
            where d.state = 'requeueing' and d.tenant = i.tenant and d.consumer = i.consumer and d.key = i.key
        )
    order by i.consumer, i.key
    limit $2
    for update of i skip locked
)
delete from oncely.idempotency_keys as i
using due as d
where i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
returning i.consumer, i.key, i.fingerprint
