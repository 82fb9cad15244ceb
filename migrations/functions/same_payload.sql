create or replace function oncely.same_payload(stored bytea, given bytea) returns boolean
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select substr(stored, 1, 4) <> substr(given, 1, 4) or stored = given
$$;
comment on function oncely.same_payload is
    'False where two fingerprints, as they are stored, are of two payloads; true where they are equal, or of two '
    'policies, which can''t be compared; null where one is missing.';
