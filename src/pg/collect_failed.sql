-- One bounded batch of keys that were given up before $2, from $4 on, where the batch before ended.
-- Never one whose letter is being requeued, as in collect_completed.sql.
-- Of all tenants but $5, or of these alone ($6), as in collect_completed.sql.
with walked as materialized (
    select i.ctid as place, completed_at as at, (i.tenant = any ($5)) = $6 as is_due
    from oncely.idempotency_keys as i
    where status = 'FAILED' and consumer = $1 and expires_at is null
      and completed_at >= coalesce($4::timestamptz, '-infinity') and completed_at < $2
    order by completed_at
    limit $3
), due as materialized (
    select i.ctid as place
    from oncely.idempotency_keys as i
    where ctid = any (array(select place from walked where is_due))
      and status = 'FAILED' and consumer = $1 and expires_at is null and completed_at < $2
      -- Set aside by hand: its message may come at any time, and then must not run. Once it has, its dead letter speaks for it.
      and (
          i.reason is distinct from 'parked'
          or exists (
              select from oncely.dead_letters as d
              where hashtextextended(d.key, 0) = hashtextextended(i.key, 0) and d.key = i.key and d.tenant = i.tenant
                and d.consumer = i.consumer
          )
      )
      -- Run under leases: what its steps have called outside stands in the key alone, and its letter may be requeued.
      and (
          i.fencing_token is null
          or i.reason = 'parked'
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
    for update of i skip locked
), gone as (
    delete from oncely.idempotency_keys
    where ctid = any (array(select place from due))
    returning 1
)
select count(*) as "found!", (select count(*) from gone) as "deleted!", oncely.bounded(max(at)) as last
from walked
