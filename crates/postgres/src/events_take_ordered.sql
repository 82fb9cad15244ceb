-- Takes the first events of ordering keys, heads first; place is the position within the key, from 1. Leaves out rows
-- that another session holds or that are not due any more, so the caller uses a key's events only up to the first gap
-- in their places. Treats times, headers and sizes as in events_take.sql. Numbers follow the order of the commits: the
-- predecessors of a visible event are visible, too, or published and gone.
with first as materialized (
    select f.tenant, f.id, f.available_at, f.place, f.size, f.is_allowed
    from unnest($2::text[], $3::text[]) as k (tenant, ordering_key)
    cross join lateral (
        select e.tenant, e.id, e.available_at, row_number() over (order by e.ordering_number) as place, 
            octet_length(e.payload) + 16::bigint * coalesce(octet_length(e.headers::text), 0) as size,
            octet_length(e.payload) <= $7 and coalesce(octet_length(e.headers::text), 0) <= $8 as is_allowed
        from oncely.events as e
        where e.tenant = k.tenant and e.ordering_key = k.ordering_key
        order by e.ordering_number
        limit $4
    ) as f
), picked as materialized (
    select tenant, id, place, is_allowed
    from (
        select tenant, id, place, size, is_allowed, row_number() over w as rank, sum(size) over w as until
        from first
        -- The head that has been due for the longest time goes first, regardless of its tenant's name. One that failed is
        -- due later than those that were not tried yet.
        window w as (order by place, available_at, id)
    ) as f
    where rank <= $5 and (until <= $6::bigint or rank = 1)
)
select e.tenant as "tenant!", e.id as "id!", greatest(least(e.created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!", e.attempts as "attempts!", e.reply as "reply!",
    e.exchange as "exchange!", e.routing_key as "routing_key!", e.ordering_key, p.place as "place!", e.message_id, e.content_type,
    e.type as kind, e.correlation_id, e.reply_to, e.app_id, case when p.is_allowed then e.headers::text end as headers,
    case when p.is_allowed then e.payload end as payload
from picked as p
join oncely.events as e on e.tenant = p.tenant and e.id = p.id
where e.state = 'pending' and e.available_at <= $1
order by p.place, e.tenant, e.ordering_key
for update of e skip locked
