-- The baseline's keys, with an index for the collection of old ones.
create table idempotency_keys (
    scope text not null,
    key text not null,
    status text not null,
    response_payload jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    lock_expires_at timestamptz,
    primary key (scope, key)
);
create index idempotency_keys_cleanup on idempotency_keys (created_at) where status = 'COMPLETED';
