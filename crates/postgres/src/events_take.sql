-- Takes due events without an ordering key that no other relay holds. $3 limits bytes, so that a batch of large events
-- fits into memory (decoded headers take many times their size); the first event is always taken. Rows locked beyond
-- the limit are released with the transaction. Of a row with a payload ($4) or headers ($5) larger than emit allows,
-- reads neither. Bounds times like oncely.bounded, without the cost of a call. Returns headers as text, because JSON
-- may hold values that Rust can't: one row must not stop all.
with due as materialized (
    select tenant, id, created_at, attempts, reply, exchange, routing_key, message_id, content_type, type, correlation_id, reply_to,
        app_id, headers::text as headers, payload, available_at
    from oncely.events
    where state = 'pending' and ordering_key is null and available_at <= $1
    order by available_at
    limit $2
    for update skip locked
)
select tenant as "tenant!", id as "id!", greatest(least(created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!", attempts as "attempts!", reply as "reply!",
    exchange as "exchange!", routing_key as "routing_key!", null::text as ordering_key, 1::bigint as "place!", message_id, content_type,
    type as kind, correlation_id, reply_to, app_id, case when is_allowed then headers end as headers,
    case when is_allowed then payload end as payload
from (
    select d.*, sum(d.size) over (order by d.available_at, d.id) as until
    from (
        select due.*, octet_length(payload) + 16::bigint * coalesce(octet_length(headers), 0) as size,
            octet_length(payload) <= $4 and coalesce(octet_length(headers), 0) <= $5 as is_allowed
        from due
    ) as d
) as d
where until <= $3::bigint or until = size
