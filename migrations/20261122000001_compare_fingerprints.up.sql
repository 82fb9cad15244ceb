set local search_path = pg_catalog, pg_temp;

-- A fingerprint names the policy that made it: four bytes for the policy, sixteen of the digest. Prints of different policies can't be
-- compared: that a consumer compares something else since its last release makes no payload another one.
create function oncely.stored_fingerprint(fingerprint bytea) returns bytea
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    -- What clients pass is sha256(body): the policy "body" (src/fingerprint/mod.rs; a test compares the two).
    select case when octet_length(fingerprint) = 32 then '\xd8470935'::bytea || substr(fingerprint, 1, 16) else fingerprint end
$$;
comment on function oncely.stored_fingerprint(bytea) is 'A fingerprint in 20 bytes, policy and digest; sha256(body), of 32 bytes, becomes the one of the policy body.';

create function oncely.same_payload(stored bytea, given bytea) returns boolean
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select substr(oncely.stored_fingerprint(stored), 1, 4) <> substr(oncely.stored_fingerprint(given), 1, 4)
        or oncely.stored_fingerprint(stored) = oncely.stored_fingerprint(given)
$$;
comment on function oncely.same_payload(bytea, bytea) is 'False where two fingerprints are of two payloads; true where they are equal, or of two policies, which nobody can compare; null where one is missing.';

comment on column oncely.idempotency_keys.fingerprint is 'What the consumer compares when a key comes back: four bytes for the policy, sixteen of a SHA-256; or sha256(body) from a client of oncely.claim. Null where nothing is compared. See oncely.same_payload.';
comment on column oncely.dead_letters.fingerprint is 'As in idempotency_keys; null where nothing is compared.';
comment on column oncely.outbox.fingerprint is 'identity: its fingerprint, as in idempotency_keys; null where nothing is compared.';
alter table oncely.outbox
    drop constraint outbox_identity,
    add constraint outbox_identity check (
        (kind = 'identity') = (consumer is not null) and (kind = 'identity') = (key is not null)
        and (kind = 'mirror') = (tags is not null)
        and octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
        and octet_length(fingerprint) in (20, 32)
    );

create or replace function oncely.decide(status text, known bytea, fingerprint bytea, on_conflict text) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when not oncely.same_payload(known, fingerprint) and on_conflict = 'dead_letter' then 'conflict'
        when status = 'COMPLETED' then 'duplicate'
        when status = 'IN_PROGRESS' then 'retake'
        else 'refused'
    end
$$;
