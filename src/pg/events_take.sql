-- Takes events without an order that are due and that no other relay holds. $3: bytes of payload, so that a batch of large
-- events fits into memory; the first is always taken. What is locked beyond that is free again with the transaction.
-- As oncely.bounded, without the cost of a call; and headers as text, because JSON may hold what Rust can't: one row must not stop all.
with due as materialized (
    select tenant, id, created_at, attempts, reply, exchange, routing_key, message_id, content_type, type, correlation_id, reply_to,
        app_id, headers, payload, available_at
    from oncely.events
    where state = 'pending' and ordering_key is null and available_at <= $1
    order by available_at
    limit $2
    for update skip locked
)
select tenant as "tenant!", id as "id!", greatest(least(created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!", attempts as "attempts!", reply as "reply!",
    exchange as "exchange!", routing_key as "routing_key!", null::text as ordering_key, 1::bigint as "place!", message_id, content_type,
    type as kind, correlation_id, reply_to, app_id, headers::text as headers,
    payload as "payload!"
from (
    select d.*, sum(octet_length(payload)) over (order by available_at, id) - octet_length(payload) as before
    from due as d
) as d
where before < $3
