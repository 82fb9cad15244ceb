-- One row per message that took effect, written in the transaction of the effect.
create table oncely.idempotency_keys (
    tenant text collate "C" not null,
    consumer text collate "C" not null,
    key text collate "C" not null,
    status text collate "C" not null,
    attempts integer not null,
    created_at timestamptz not null,
    completed_at timestamptz,
    fencing_token bigint,
    lock_expires_at timestamptz,
    fingerprint bytea,
    response jsonb,
    reason text collate "C",
    last_error text,
    owner text,
    constraint idempotency_keys_pkey primary key (tenant, consumer, key),
    constraint idempotency_keys_status check (status in ('IN_PROGRESS', 'COMPLETED', 'FAILED')),
    -- A missing end must never read as "never ends" (nor the other way round).
    constraint idempotency_keys_completed_at check ((status = 'IN_PROGRESS') = (completed_at is null)),
    constraint idempotency_keys_failed_has_reason check (status <> 'FAILED' or reason is not null),
    constraint idempotency_keys_identity check (
        octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
    )
);
comment on table oncely.idempotency_keys is 'What took effect, by (tenant, consumer, key). Collected when older than the consumer''s retention.';
comment on column oncely.idempotency_keys.tenant is 'Whose message it is. Compared byte for byte.';
comment on column oncely.idempotency_keys.consumer is 'For which consumer: two consumers of one fan-out both see a message.';
comment on column oncely.idempotency_keys.key is 'Which message. Compared byte for byte.';
comment on column oncely.idempotency_keys.status is 'COMPLETED: took effect. IN_PROGRESS: failed so far, may run again. FAILED: given up and dead-lettered.';
comment on column oncely.idempotency_keys.attempts is 'Runs of the handler whose result is known, this one included.';
comment on column oncely.idempotency_keys.created_at is 'When the key was first claimed.';
comment on column oncely.idempotency_keys.completed_at is 'When the outcome became final (COMPLETED or FAILED); retention counts from here.';
comment on column oncely.idempotency_keys.fencing_token is 'Lease mode: number of the claim that may complete the row.';
comment on column oncely.idempotency_keys.lock_expires_at is 'Lease mode: until when the claim holds.';
comment on column oncely.idempotency_keys.fingerprint is 'SHA-256 of the body (or what the consumer chose); null where the consumer compares nothing.';
comment on column oncely.idempotency_keys.response is 'What the handler returned; a duplicate gets it again.';
comment on column oncely.idempotency_keys.reason is 'FAILED: the stable reason code, as in the header x-oncely-reason.';
comment on column oncely.idempotency_keys.last_error is 'Text of the last failure, for people.';
comment on column oncely.idempotency_keys.owner is 'Lease mode: the worker that holds the claim.';

-- The rows of one batch share consumer and completed_at, so B-tree deduplication keeps these small.
create index idempotency_keys_completed on oncely.idempotency_keys (consumer, completed_at) where status = 'COMPLETED';
comment on index oncely.idempotency_keys_completed is 'For the garbage collection.';
create index idempotency_keys_failed on oncely.idempotency_keys (consumer, completed_at) where status = 'FAILED';
comment on index oncely.idempotency_keys_failed is 'For the garbage collection and for lists of what was given up.';
create index idempotency_keys_in_progress on oncely.idempotency_keys (consumer, created_at) where status = 'IN_PROGRESS';
comment on index oncely.idempotency_keys_in_progress is 'For the garbage collection of retries that never came back.';
