set local search_path = pg_catalog, pg_temp;

-- Defines a key's states. An enum reads like a text and takes four bytes; `alter type … add value` adds a state.
create type oncely.key_status as enum ('IN_PROGRESS', 'COMPLETED', 'FAILED');
comment on type oncely.key_status is
    'COMPLETED: took effect. IN_PROGRESS: failed so far, may run again. FAILED: given up and dead-lettered.';

-- Holds a row per message that took effect, written in the transaction of the effect.
--
-- A failed message's delay stands with its key: if only its copy knew it, each further copy (a producer's repetition,
-- an original that is redelivered beside its copy) would run at once and spend an attempt.
--
-- A message that kills the process leaves no failure behind: its transaction is rolled back and its attempt uncounted.
-- So a redelivered message is marked before it runs, with the session that serves the run, and identified after a few
-- marks that were not removed, of sessions that are gone.
--
-- This table has more rows than all others, so their bytes count: first columns that are always set and of a fixed
-- length, then the identity, then columns that most rows lack (a null takes a bit). For a key that is a UUID 141 bytes
-- in the heap and 97 in the primary key; as type uuid it would take 26 and 24 less. But keys are texts, compared byte
-- for byte, and `where key = 'order-1182'` must find one.
create table oncely.idempotency_keys (
    created_at timestamptz not null,
    completed_at timestamptz,
    attempts integer not null,
    crash_attempts integer not null default 0,
    status oncely.key_status not null,
    tenant text collate "C" not null,
    consumer text collate "C" not null,
    key text collate "C" not null,
    fingerprint bytea,
    response jsonb,
    reason text collate "C",
    error_code text collate "C",
    last_error text,
    not_before timestamptz,
    expires_at timestamptz,
    claimed_in bigint,
    marked_pid integer,
    marked_backend_start timestamptz,
    owner text collate "C",
    fencing_token bigint,
    run_ends_at timestamptz,
    steps jsonb,
    http_status smallint,
    http_headers jsonb,
    http_body bytea,
    grace_ends_at timestamptz,
    constraint idempotency_keys_pkey primary key (tenant, consumer, key),
    -- A missing end must never read as "never ends" (nor the other way round).
    constraint idempotency_keys_completed_at check ((status = 'IN_PROGRESS') = (completed_at is null)),
    constraint idempotency_keys_failed_has_reason check (status <> 'FAILED' or reason is not null),
    constraint idempotency_keys_identity check (
        octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
    ),
    -- A worker that does not know leases fails at a held key instead of running it, and a lease always has an end.
    constraint idempotency_keys_lease check (
        (owner is null) = (run_ends_at is null)
        and (owner is null or (status = 'IN_PROGRESS' and not_before is not null and fencing_token is not null))
    ),
    -- An incremented count always fits its type.
    constraint idempotency_keys_bounds check (
        least(attempts, crash_attempts) >= 0 and greatest(attempts, crash_attempts) <= 1000000
        and octet_length(fingerprint) = 16
        and octet_length(owner) between 1 and 255
        -- An integer that every language's JSON holds.
        and fencing_token between 1 and 9007199254740991
    ),
    -- The answer to a request is complete and final.
    constraint idempotency_keys_http check (
        (http_status is null) = (http_headers is null) and (http_body is null or http_status is not null)
        and (http_status is null or (status = 'COMPLETED' and http_status between 200 and 599))
    ),
    constraint idempotency_keys_times check (
        least(created_at, completed_at, not_before, expires_at, marked_backend_start, run_ends_at, grace_ends_at)
            >= '1970-01-01 00:00:00+00'
        and greatest(created_at, completed_at, not_before, expires_at, marked_backend_start, run_ends_at, grace_ends_at)
            <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.idempotency_keys is
    'What took effect, by (tenant, consumer, key). Collected when older than the consumer''s retention.';
comment on column oncely.idempotency_keys.created_at is 'When the key was first claimed.';
comment on column oncely.idempotency_keys.completed_at is
    'When the outcome became final (COMPLETED or FAILED); retention counts from here.';
comment on column oncely.idempotency_keys.attempts is 'Runs of the handler whose result is known, this one included.';
comment on column oncely.idempotency_keys.crash_attempts is
    'Runs that began after a redelivery and ended without a report: the process died in them, or they are at '
    'work now. After consumers.retry.max_crashes the message is dead-lettered as crash.';
comment on column oncely.idempotency_keys.status is
    'COMPLETED: took effect. IN_PROGRESS: failed so far, may run again. FAILED: given up and dead-lettered.';
comment on column oncely.idempotency_keys.tenant is 'Whose message it is. Compared byte for byte.';
comment on column oncely.idempotency_keys.consumer is
    'For which consumer: two consumers of one fan-out both see a message.';
comment on column oncely.idempotency_keys.key is 'Which message. Compared byte for byte.';
comment on column oncely.idempotency_keys.fingerprint is
    'What the consumer compares when a key comes back: four bytes for the policy, twelve of a SHA-256. Null where '
    'nothing is compared. See oncely.same_payload.';
comment on column oncely.idempotency_keys.response is 'What the handler returned; a duplicate gets it again.';
comment on column oncely.idempotency_keys.reason is
    'FAILED: the stable reason code, as in the header x-oncely-reason. COMPLETED: refused where the handler said '
    'no, and the response says why.';
comment on column oncely.idempotency_keys.error_code is
    'SQLSTATE of the last failure that spent an attempt: what a message answers for once it answers for again.';
comment on column oncely.idempotency_keys.last_error is 'Text of the last failure, for people.';
comment on column oncely.idempotency_keys.not_before is
    'IN_PROGRESS: no copy of the message runs before this time. Null: any may. Of a held key (owner): when its lease '
    'ends.';
comment on column oncely.idempotency_keys.expires_at is
    'When the key may be collected, where its claim said so (oncely.claim); null where the consumer''s retention '
    'decides.';
comment on column oncely.idempotency_keys.claimed_in is
    'Number of the transaction of the last claim by oncely.claim or oncely.claim_lease: the one may complete the row, '
    'of the other no step may begin in it.';
comment on column oncely.idempotency_keys.marked_pid is
    'With crash_attempts: the PostgreSQL process that serves the run counted last. As long as it is there, that run '
    'is no death.';
comment on column oncely.idempotency_keys.marked_backend_start is
    'When that PostgreSQL process started: tells it from a later one of the same number.';
comment on column oncely.idempotency_keys.owner is
    'Who holds the key by a lease (oncely.claim_lease): a name that is made anew for each acquisition. The lease ends '
    'at not_before; until another run takes the key over, its holder may finish late.';
comment on column oncely.idempotency_keys.fencing_token is
    'Number of the last lease of the key, greater than that of every lease of it before: only the holder of this one '
    'may change the row; the holder of an older one may store the outcome of its call.';
comment on column oncely.idempotency_keys.run_ends_at is 'No renewal makes the lease end later than this.';
comment on column oncely.idempotency_keys.grace_ends_at is
    'Until when a lease that had run out was made longer, once, for a claim that could not know for how long the '
    'server could not be reached.';
comment on column oncely.idempotency_keys.steps is
    'What runs under leases have begun and done, by the name of the step: oncely.begin_step. A key that has any is run '
    'under a lease only, unless an operator said that none of it took effect.';
comment on column oncely.idempotency_keys.http_status is
    'With which status its request was answered over HTTP; null where it came as a message.';
comment on column oncely.idempotency_keys.http_headers is
    'Of that answer: the headers that are sent again, as pairs of name and value, in their order.';
comment on column oncely.idempotency_keys.http_body is
    'Of that answer: its bytes, which jsonb would not keep; null where it was too large to be stored.';

-- Rows of one batch share consumer and completed_at, so B-tree deduplication keeps these indexes small.
create index idempotency_keys_completed on oncely.idempotency_keys (consumer, completed_at)
where status = 'COMPLETED';
comment on index oncely.idempotency_keys_completed is 'For the garbage collection.';
-- Includes the identity, so that a key that was given up is found without a scan: not each is in the trail.
create index idempotency_keys_failed on oncely.idempotency_keys (consumer, completed_at) include (tenant, key)
where status = 'FAILED';
comment on index oncely.idempotency_keys_failed is 'For the garbage collection and for lists of what was given up.';
create index idempotency_keys_in_progress on oncely.idempotency_keys (consumer, created_at)
where status = 'IN_PROGRESS';
comment on index oncely.idempotency_keys_in_progress is 'For the garbage collection of retries that never came back.';
create index idempotency_keys_expires_at on oncely.idempotency_keys (expires_at)
where expires_at is not null;
comment on index oncely.idempotency_keys_expires_at is 'For the garbage collection of keys that carry their own end.';
-- Contains neither the end of a lease nor steps: a renewal writes no index. Statements about one key test for a held
-- key in words that this does not suit (run_ends_at): the primary key finds it, however many dead entries are here.
create index idempotency_keys_held on oncely.idempotency_keys (consumer, fencing_token)
where owner is not null;
comment on index oncely.idempotency_keys_held is 'For lists and counts of what is held by leases, the oldest first.';

-- from functions/stored_fingerprint.sql
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

-- from functions/same_payload.sql
create or replace function oncely.same_payload(stored bytea, given bytea) returns boolean
language sql immutable parallel safe
begin atomic
    select substr(stored, 1, 4) <> substr(given, 1, 4) or stored = given;
end;
comment on function oncely.same_payload is
    'False where two fingerprints, as they are stored, are of two payloads; true where they are equal, or of two '
    'policies, which can''t be compared; null where one is missing.';

-- from functions/decide.sql
-- Applies the worker's rule (crates/core/src/decide.rs); a test goes through all cases with both.
create or replace function oncely.decide(
    status oncely.key_status, known bytea, fingerprint bytea, is_leased boolean, on_conflict text
) returns text
language sql immutable parallel safe
begin atomic
    select case
        when not oncely.same_payload(known, fingerprint) and on_conflict = 'dead_letter' then 'conflict'
        when status = 'COMPLETED' then 'duplicate'
        when status = 'IN_PROGRESS' and is_leased then 'leased'
        when status = 'IN_PROGRESS' then 'retake'
        else 'given_up'
    end;
end;
comment on function oncely.decide is
    'What a known key means for a message: conflict, duplicate, given_up, retake, or leased: it ran under a lease, and '
    'a run that has none waits for its end and does not run it.';

-- from functions/is_at_work.sql
-- Clears the snapshot of pg_stat_activity, which is read once a transaction: after a lock wait, a session opened
-- meanwhile would be missing, and its run would look dead. For another login's session only the process is shown: a
-- session that may be the marking one counts as it, because a missed death costs a killer one more run, and a false
-- death might cost an innocent message its place. Stable, though it is asked anew for each row: PostgreSQL keeps no
-- result of a stable function, and an engine that spreads tables over nodes passes no condition on that is volatile.
create or replace function oncely.is_at_work(pid integer, backend_start timestamptz) returns boolean
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform pg_stat_clear_snapshot();
    return exists (
        select from pg_stat_activity as a
        where a.pid = is_at_work.pid
            and coalesce(a.backend_start, is_at_work.backend_start) = is_at_work.backend_start
    );
end
$$;
comment on function oncely.is_at_work is 'Is the session there that marked a key? Asked anew with each call.';
revoke execute on function oncely.is_at_work from public;

-- end of functions
