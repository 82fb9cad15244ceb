-- Makes a UUID (PostgreSQL 18 has uuidv7()). Time first, so that new rows lie together. Parsed once, when created:
-- needs no search_path of its own, which would cost more than the rest, once for each event.
create or replace function oncely.uuid_v7(at timestamptz) returns uuid
language sql volatile parallel safe
begin atomic
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6
            ),
            52, 1), 53, 1),
        'hex')::uuid;
end;
comment on function oncely.uuid_v7 is 'A random uuid of version 7 for a time.';
revoke execute on function oncely.uuid_v7 from public;
