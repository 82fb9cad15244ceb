-- The tables of the baseline: a key per message with an index for the collection of old ones, a trail, an outbox.
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
create table audit (
    id bigserial primary key,
    scope text not null,
    key text not null,
    consumer text not null,
    outcome text not null,
    occurred_at timestamptz not null default now()
);
create table outbox (
    id bigserial primary key,
    scope text not null,
    event jsonb not null,
    created_at timestamptz not null default now()
);
