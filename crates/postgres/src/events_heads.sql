-- Walks over ordering keys by their heads, one index probe each, from ($2, $3) on: at most $4 keys, until $5 of them
-- are ready. A key with a waiting or parked head costs one probe, however many events follow it. Returns the ready keys
-- with their heads, and the last key examined.
with recursive heads as (
    (
        select e.tenant, e.ordering_key, e.id, e.state = 'pending' and e.available_at <= $1 as ready, 1::bigint as seen,
            (e.state = 'pending' and e.available_at <= $1)::integer::bigint as found
        from oncely.events as e
        where e.ordering_key is not null and (e.tenant, e.ordering_key) > ($2::text, $3::text)
        order by e.tenant, e.ordering_key, e.ordering_number
        limit 1
    )
    union all
    select n.tenant, n.ordering_key, n.id, n.ready, h.seen + 1, h.found + n.ready::integer
    from heads as h
    cross join lateral (
        select e.tenant, e.ordering_key, e.id, e.state = 'pending' and e.available_at <= $1 as ready
        from oncely.events as e
        where e.ordering_key is not null and (e.tenant, e.ordering_key) > (h.tenant, h.ordering_key)
        order by e.tenant, e.ordering_key, e.ordering_number
        limit 1
    ) as n
    where h.seen < $4 and h.found < $5
)
select tenant as "tenant!", ordering_key as "ordering_key!", id as "id!", ready as "ready!", seen as "seen!", found as "found!"
from heads
where ready or seen = (select max(seen) from heads)
order by seen
