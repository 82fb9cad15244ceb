set local search_path = pg_catalog, pg_temp;

create or replace function oncely.decide(status text, known bytea, fingerprint bytea, on_conflict text) returns text
language sql immutable parallel safe
as $$
    select case
        when known <> fingerprint and on_conflict = 'dead_letter' then 'conflict'
        when status = 'COMPLETED' then 'duplicate'
        when status = 'IN_PROGRESS' then 'retake'
        else 'refused'
    end
$$;
alter function oncely.decide(text, bytea, bytea, text) reset all;
alter table oncely.outbox
    drop constraint outbox_identity,
    add constraint outbox_identity check (
        (kind = 'identity') = (consumer is not null) and (kind = 'identity') = (key is not null)
        and (kind = 'mirror') = (tags is not null)
        and octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
        and (octet_length(fingerprint) = 32 or octet_length(fingerprint) = 20)
    );
comment on column oncely.idempotency_keys.fingerprint is 'SHA-256 of the body (or what the consumer chose); null where the consumer compares nothing.';
comment on column oncely.dead_letters.fingerprint is 'What the consumer compares when a key comes back; null where it compares nothing.';
comment on column oncely.outbox.fingerprint is 'identity: its fingerprint; null where nothing is compared.';
drop function oncely.same_payload(bytea, bytea);
drop function oncely.stored_fingerprint(bytea);
