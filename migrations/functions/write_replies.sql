-- Writes replies for workers, which can't insert into the table of events themselves.
create or replace function oncely.write_replies(
    consumer text, at timestamptz, tenants text[], keys text[], ids uuid[], reply_tos text[], message_ids text[],
    correlation_ids text[], headers jsonb[]
)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    written bigint;
begin
    -- As in oncely.emit: RabbitMQ takes CC and BCC as lists of routing keys.
    if exists (
        select from unnest(headers) as h (value)
        where jsonb_typeof(h.value) <> 'object' or h.value ?| array['CC', 'BCC']
    ) then
        raise exception using errcode = 'ONC05', message = 'the headers of a reply can''t be sent';
    end if;
    -- Renders a reply's body from the stored response, for the first run and for a duplicate alike: the same bytes. A
    -- response encrypted before replies were turned on is sent as null.
    insert into oncely.events (
        tenant, id, created_at, available_at, exchange, routing_key, reply, message_id, correlation_id, content_type,
        app_id, headers, payload
    )
    select r.tenant, r.id, write_replies.at, write_replies.at, '', r.reply_to, true, r.message_id, r.correlation_id,
        'application/json', 'oncely', r.headers,
        convert_to(coalesce(oncely.plain_json(i.response)::text, 'null'), 'UTF8')
    from unnest(tenants, keys, ids, reply_tos, message_ids, correlation_ids, headers)
        as r (tenant, key, id, reply_to, message_id, correlation_id, headers)
    join oncely.idempotency_keys as i
        on oncely.in_group(i.tenant, tenants) and i.tenant = r.tenant
          and i.consumer = write_replies.consumer and i.key = r.key;
    get diagnostics written = row_count;
    perform oncely.notify_relay();
    return written;
end
$$;
comment on function oncely.write_replies is
    'Writes the stored responses of keys as events for those who asked. For workers.';
revoke execute on function oncely.write_replies from public;
