-- Runs a handler like call_parts.sql. Converts bodies to jsonb; a body that jsonb can't hold becomes null.
select array_agg(p.seq) as "seqs!: Vec<i32>",
    case when count(p.response) > 0 then oncely.response_texts(array_agg(p.response), $6) end
        as "responses: Vec<Option<String>>",
    array_agg(p.error_code) as "error_codes!: Vec<Option<String>>",
    array_agg(left(p.error_message, 4096)) as "error_messages!: Vec<Option<String>>",
    array_agg(p.error_place) as "error_places!: Vec<Option<String>>"
from oncely.handle_parts($1, $2, $5, array(
    select row(
        m.seq, m.attempt, m.redelivered, m.published_at, m.tenant, m.consumer, m.key,
        case when j.is_json then oncely.try_jsonb(m.body) end,
        m.body, m.content_type, m.headers, m.exchange, m.routing_key, m.queue,
        m.message_id, m.correlation_id, m.reply_to, m.type, m.user_id, m.app_id, m.trace_id
    )::oncely.message
    from unnest($3::oncely.message[]) as m
    join unnest($4::boolean[]) with ordinality as j (is_json, seq) on j.seq = m.seq
    order by m.seq
)) as p
