-- A reply's body is rendered here, from the stored response, for the first run and for a duplicate alike: the same bytes.
insert into oncely.events (
    tenant, id, created_at, available_at, exchange, routing_key, reply, message_id, correlation_id, content_type, app_id, headers, payload
)
select r.tenant, r.id, $2, $2, '', r.reply_to, true, r.message_id, r.correlation_id, 'application/json', 'oncely', r.headers,
    convert_to(coalesce(i.response::text, 'null'), 'UTF8')
from unnest($3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[], $8::text[], $9::jsonb[])
    as r (tenant, key, id, reply_to, message_id, correlation_id, headers)
join oncely.idempotency_keys as i on i.tenant = r.tenant and i.consumer = $1 and i.key = r.key
