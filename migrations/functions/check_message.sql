create or replace function oncely.check_message(
    queue text, exchange text, routing_key text, properties json, headers json
) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    other text;
begin
    if coalesce(queue, '') = '' then
        raise exception using errcode = 'ONC11', message = 'oncely: a message has a body and no queue',
            hint = 'queue => the queue that it came from: a requeue publishes it there.';
    end if;
    if greatest(octet_length(exchange), octet_length(routing_key)) > 255 then
        raise exception using errcode = 'ONC11', message = 'oncely: exchange and routing_key have 255 bytes at most';
    end if;
    if json_typeof(properties) not in ('object', 'null') or json_typeof(headers) not in ('object', 'null') then
        raise exception using errcode = 'ONC11', message = 'oncely: properties and headers are JSON objects, or null';
    end if;
    if json_typeof(properties) = 'object' then
        select p.name into other
        from json_each(properties) as p (name, value)
        where json_typeof(p.value) <> 'null' and json_typeof(p.value) is distinct from case
            when p.name in ('delivery_mode', 'priority', 'timestamp') then 'number'
            when p.name in (
                'content_type', 'content_encoding', 'correlation_id', 'reply_to', 'expiration', 'message_id', 'type',
                'user_id', 'app_id', 'cluster_id'
            ) then 'string'
        end
        limit 1;
        if found then
            raise exception using errcode = 'ONC11',
                message = format('oncely: %L is no property of AMQP, or has another type', other),
                hint = 'Properties have AMQP''s names (content_type, message_id, …); headers go into headers.';
        end if;
    end if;
end
$$;
comment on function oncely.check_message is
    'Refuses a message that can''t be published as it is given (SQLSTATE ONC11).';
revoke execute on function oncely.check_message from public;
