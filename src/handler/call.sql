-- Runs a handler on a batch. The messages are built here, so that each body travels once. A body that jsonb refuses fails
-- the whole batch; where each message is alone it becomes null instead.
select h.seq as "seq!", h.response, h.error_code, h.error_message
from oncely.handle($1, $2, $24, $25, (
    select array_agg(
        row(
            m.seq, m.attempt, m.redelivered, m.published_at, m.tenant, $3, m.key,
            case when not m.is_json then null when $24 then oncely.try_jsonb(m.body) else convert_from(m.body, 'UTF8')::jsonb end,
            m.body, m.content_type, m.headers, m.exchange, m.routing_key, m.queue,
            m.message_id, m.correlation_id, m.reply_to, m.type, m.user_id, m.app_id, m.trace_id
        )::oncely.message
        order by m.seq
    )
    from unnest(
        $4::integer[], $5::integer[], $6::boolean[], $7::timestamptz[], $8::text[], $9::text[], $10::boolean[],
        $11::bytea[], $12::text[], $13::jsonb[], $14::text[], $15::text[], $16::text[],
        $17::text[], $18::text[], $19::text[], $20::text[], $21::text[], $22::text[], $23::text[]
    ) as m (
        seq, attempt, redelivered, published_at, tenant, key, is_json,
        body, content_type, headers, exchange, routing_key, queue,
        message_id, correlation_id, reply_to, type, user_id, app_id, trace_id
    )
)) as h
