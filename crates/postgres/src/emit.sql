-- Emits an event through the function that all other clients call: one place defines valid events.
select oncely.emit(
    $1::text, $2::text, $3::bytea, headers => $4::jsonb, content_type => $5::text, message_id => $6::text, ordering_key => $7::text,
    delay => pg_catalog.make_interval(secs => $8::double precision), type => $9::text, source => $10::text, correlation_id => $11::text,
    reply_to => $12::text, app_id => $13::text, tenant => $14::text
) as "id!"
