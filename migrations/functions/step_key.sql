-- Derives a step's key. Clients in any language can compute it, too; a test compares the results.
create or replace function oncely.step_key(tenant text, consumer text, key text, step text, round integer default 0)
returns uuid
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
                string_agg(int4send(octet_length(p.part)) || convert_to(p.part, 'UTF8'), '' order by p.place)
                || int4send(round)
            ), 1, 16
        ) as digest
        from (values (1, tenant), (2, consumer), (3, key), (4, step)) as p (place, part)
    ) as d
$$;
comment on function oncely.step_key is
    'The key of a step for the other side, the same in every run and language: a UUID of version 8, of SHA-256 over '
    'tenant, consumer, key and step (UTF-8, each after its length in four bytes, most significant first) and the '
    'round (four bytes).';
