-- One bounded batch of keys that say themselves when they may go (oncely.claim), of whatever consumer; from $3 on, where the batch
-- before ended. Never one whose mirror record may still be pending, or whose letter is being requeued, as in collect_completed.sql.
with due as materialized (
    select i.ctid as place, expires_at as at
    from oncely.idempotency_keys as i
    where expires_at >= coalesce($3::timestamptz, '-infinity') and expires_at < $1
      -- The time in which its consumer was paused does not count.
      and not exists (
          select from oncely.consumers as c
          where c.consumer = i.consumer and not isempty(c.paused)
            and oncely.forgotten_before($1, i.expires_at - i.created_at, c.paused) <= i.created_at
      )
      and (status <> 'COMPLETED' or completed_at < coalesce((select min(coalesce(q.completed_at, q.created_at)) from oncely.mirror_queue as q), 'infinity'))
      and coalesce(i.not_before, '-infinity') < $1
      -- Run under leases: what its steps have called outside stands in the key alone, and its letter may be requeued.
      and (
          i.fencing_token is null or i.status <> 'FAILED'
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
    order by expires_at
    limit $2
    for update of i skip locked
), gone as (
    delete from oncely.idempotency_keys
    where ctid = any (array(select place from due))
    returning 1
)
select count(*) as "found!", (select count(*) from gone) as "deleted!", oncely.bounded(max(at)) as last
from due
