-- One bounded batch of keys whose retry never came back: first claimed before $2, and no retry can be older. From $4 on, where
-- the batch before ended.
-- Never one whose letter is being requeued, as in collect_completed.sql.
-- Of all tenants but $5, or of these alone ($6), as in collect_completed.sql.
with walked as materialized (
    select i.ctid as place, created_at as at, (i.tenant = any ($5)) = $6 as is_due
    from oncely.idempotency_keys as i
    where status = 'IN_PROGRESS' and consumer = $1 and expires_at is null
      and created_at >= coalesce($4::timestamptz, '-infinity') and created_at < $2
    order by created_at
    limit $3
), due as materialized (
    select i.ctid as place
    from oncely.idempotency_keys as i
    where ctid = any (array(select place from walked where is_due))
      and status = 'IN_PROGRESS' and consumer = $1 and expires_at is null and created_at < $2
      -- A run that holds it, or a copy that waits for its time, is still to come.
      and coalesce(i.not_before, '-infinity') < $2
      -- Claimed under a lease since then (the token is the time of the claim): it is still tried, and its steps are known.
      and coalesce(to_timestamp(i.fencing_token / 1000000.0), '-infinity') < $2
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
