create or replace function oncely.same_payload(stored bytea, given bytea) returns boolean
language sql immutable parallel safe
begin atomic
    select substr(stored, 1, 4) <> substr(given, 1, 4) or stored = given;
end;
comment on function oncely.same_payload is
    'False where two fingerprints, as they are stored, are of two payloads; true where they are equal, or of two '
    'policies, which can''t be compared; null where one is missing.';
