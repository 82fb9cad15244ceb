-- Converts a fingerprint to its stored form, which names its policy: four bytes for the policy, twelve of the digest.
-- Fingerprints of different policies can't be compared: a consumer's new policy makes no payload another one. 96 bits
-- of digest: no payload can be made for a given fingerprint. A sender that makes two payloads with one fingerprint
-- (2^48 tries) has the second taken for a duplicate of the first, as if it had not been sent.
--
-- Clients pass sha256(body), the policy "body" (crates/core/src/fingerprint.rs; a test compares the two), or up to 64
-- bytes of another kind: a policy of its own, by any length.
create or replace function oncely.stored_fingerprint(fingerprint bytea) returns bytea
language sql immutable parallel safe
begin atomic
    select case
        when octet_length(fingerprint) = 32 then E'\\xd8470935'::bytea || substr(fingerprint, 1, 12)
        else E'\\xfeae938b'::bytea || substr(sha256(fingerprint), 1, 12)
    end;
end;
comment on function oncely.stored_fingerprint is
    'What is stored of a fingerprint that a client passes, in 16 bytes, policy and digest: sha256(body), of 32 '
    'bytes, becomes the one of the policy body; null stays null.';
