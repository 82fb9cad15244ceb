-- The same as the article on this way has them, with an index that repeats the primary key's work.
create table idempotency_keys (
    key varchar(255) primary key,
    scope varchar(255) not null,
    status varchar(20) not null,
    response_payload jsonb,
    created_at timestamptz not null default now(),
    updated_at timestamptz not null default now(),
    lock_expires_at timestamptz
);
create unique index idx_idempotency_key_scope on idempotency_keys (key, scope);
create index idx_idempotency_keys_cleanup on idempotency_keys (created_at) where status = 'COMPLETED';
