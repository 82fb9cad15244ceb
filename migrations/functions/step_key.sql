-- Derives a step's key. Clients in any language can compute it, too; a test compares the results.
create or replace function oncely.step_key(tenant text, consumer text, key text, step text, round integer default 0)
returns uuid
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
declare
    digest bytea;
begin
    digest := substr(
        sha256(
            int4send(octet_length(tenant)) || convert_to(tenant, 'UTF8')
            || int4send(octet_length(consumer)) || convert_to(consumer, 'UTF8')
            || int4send(octet_length(key)) || convert_to(key, 'UTF8')
            || int4send(octet_length(step)) || convert_to(step, 'UTF8')
            || int4send(round)
        ), 1, 16
    );
    return encode(
        set_byte(set_byte(digest, 6, (get_byte(digest, 6) & 15) | 128), 8, (get_byte(digest, 8) & 63) | 128), 'hex'
    )::uuid;
end
$$;
comment on function oncely.step_key is
    'The key of a step for the other side, the same in every run and language: a UUID of version 8, of SHA-256 over '
    'tenant, consumer, key and step (UTF-8, each after its length in four bytes, most significant first) and the '
    'round (four bytes).';
