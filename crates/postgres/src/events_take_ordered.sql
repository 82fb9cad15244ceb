-- Takes these events of ordering keys, with their positions within their keys. Leaves out rows that another session
-- holds or that are not due any more, so the caller uses a key's events only up to the first gap in their positions.
-- Treats times, headers, sizes and rows beyond the limit of bytes as in events_take.sql, in the order of
-- events_follow.sql. Numbers follow the order of the commits: the predecessors of a visible event are visible, too, or
-- published and gone.
with due as materialized (
    select e.tenant, e.id, e.created_at, e.attempts, e.reply, e.exchange, e.routing_key, e.ordering_key, p.place, e.message_id,
        e.content_type, e.type, e.correlation_id, e.reply_to, e.app_id, e.headers::text as headers, e.payload, e.available_at
    from unnest($2::text[], $3::uuid[], $4::bigint[]) as p (tenant, id, place)
    join oncely.events as e on e.tenant = p.tenant and e.id = p.id
    where e.state = 'pending' and e.available_at <= $1
    for update of e skip locked
)
select tenant as "tenant!", id as "id!", greatest(least(created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!", attempts as "attempts!", reply as "reply!",
    exchange as "exchange!", routing_key as "routing_key!", ordering_key, place as "place!", message_id, content_type,
    type as kind, correlation_id, reply_to, app_id, case when is_allowed then headers end as headers,
    case when is_allowed then payload end as payload
from (
    select d.*, sum(d.size) over (order by d.place, d.available_at, d.id) as until
    from (
        select due.*, octet_length(payload) + 16::bigint * coalesce(octet_length(headers), 0) as size,
            octet_length(payload) <= $6 and coalesce(octet_length(headers), 0) <= $7 as is_allowed
        from due
    ) as d
) as d
where until <= $5::bigint or until = size
order by place, tenant, ordering_key
