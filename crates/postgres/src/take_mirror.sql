-- Takes the oldest records that no other relay holds. Avoids "id > last": ids commit out of order.
--
-- A worker's record has the retention that the worker was started with, a repeated record that of its repetition. A
-- retention shortened since then applies instead, and so does a tenant's shorter one; a batch's tags are of any
-- tenants, so the shortest of all applies. $2 is the lifetime of an entry; no key is collected earlier. A claim's own
-- end is exact. $3 limits the bytes of tags, which are in memory several times; the first record is always taken.
-- Rows locked beyond the limit are released with the transaction.
with oldest as materialized (
    select tenant, id, tags, consumer, key, fingerprint, expires_at, completed_at, created_at
    from oncely.mirror_queue
    where kind in ('mirror', 'identity')
    order by created_at
    limit $1
    for update skip locked
)
select q.tenant as "tenant!", q.id as "id!", q.tags, q.consumer as "consumer!", q.key, q.fingerprint,
    greatest(
        least(
            q.expires_at,
            case
                when q.tags is not null then q.created_at + least(c.retention, o.retention)
                when q.completed_at is not null then q.completed_at + coalesce(o.retention, c.retention)
            end,
            '9999-12-31 00:00:00+00'
        ),
        '1970-01-01 00:00:00+00'
    ) as "expires_at!",
    greatest(least(q.created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!"
from (
    select o.*, coalesce(octet_length(o.tags), 0) as size,
        sum(coalesce(octet_length(o.tags), 0)) over (order by o.created_at, o.id) as until
    from oldest as o
) as q
left join oncely.consumers as c on c.consumer = q.consumer
cross join lateral (
    select min(greatest(l.retention, $2)) as retention
    from oncely.tenant_limits as l
    where l.retention is not null and (q.tags is not null or l.tenant = q.tenant)
) as o
where q.until <= $3::bigint or q.until = q.size
order by q.created_at, q.id
