-- Returns the newest completed keys of each of $4 spans of time, through the index of completed keys. Excludes keys as
-- young as the oldest record that still waits for the relay.
select k.tenant as "tenant!", k.key as "key!", k.fingerprint
from generate_series(0, $4::integer - 1) as s (span)
cross join lateral (
    select i.tenant, i.key, i.fingerprint
    from oncely.idempotency_keys as i
    where i.status = 'COMPLETED'
      and i.consumer = $1
      and i.completed_at >= $2::timestamptz + ($3::timestamptz - $2) * s.span / $4
      and i.completed_at < $2::timestamptz + ($3::timestamptz - $2) * (s.span + 1) / $4
      and i.completed_at < coalesce((select min(q.created_at) from oncely.mirror_queue as q), $3)
      and coalesce(
          i.expires_at,
          i.completed_at + least(
              (select c.retention from oncely.consumers as c where c.consumer = i.consumer),
              (select l.retention from oncely.tenant_limits as l where l.tenant = i.tenant)
          )
      ) >= $5
    order by i.completed_at desc
    limit $6
) as k
