create or replace function oncely.letter_id(tenant text, consumer text, key text, body bytea) returns uuid
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea;
begin
    digest := substr(
        sha256(
            int8send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
            || int8send(octet_length(consumer)) || convert_to(consumer, 'UTF8')
            || int8send(octet_length(key)) || convert_to(key, 'UTF8')
            || body
        ), 1, 16
    );
    return encode(
        set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128), 'hex'
    )::uuid;
end
$$;
comment on function oncely.letter_id is
    'The id of a dead letter: the same one however often the message is dead-lettered, by workers too.';
revoke execute on function oncely.letter_id from public;
