create or replace function oncely.letter_id(tenant text, consumer text, key text, body bytea) returns uuid
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select encode(
        set_byte(
            set_byte(d.digest, 6, (get_byte(d.digest, 6) & 15) | 128), 8, (get_byte(d.digest, 8) & 63) | 128
        ), 'hex'
    )::uuid
    from (
        select substr(
            sha256(
                string_agg(int8send(octet_length(p.part)) || convert_to(p.part, 'UTF8'), '' order by p.place) || body
            ), 1, 16
        ) as digest
        from (values (1, tenant), (2, consumer), (3, key)) as p (place, part)
    ) as d
$$;
comment on function oncely.letter_id is
    'The id of a dead letter: the same one however often the message is dead-lettered, by workers too.';
revoke execute on function oncely.letter_id from public;
