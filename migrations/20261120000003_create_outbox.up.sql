-- What still has to leave PostgreSQL, written in the transaction that decided it. The relay takes rows by SKIP LOCKED.
create table oncely.outbox (
    tenant text collate "C" not null,
    id uuid not null,
    kind text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    tags bytea not null,
    constraint outbox_pkey primary key (tenant, id),
    constraint outbox_kind check (kind in ('mirror')),
    constraint outbox_tags check (octet_length(tags) > 0 and octet_length(tags) % 16 = 0)
);
comment on table oncely.outbox is 'Records on their way to Redis; a row goes when it has arrived.';
comment on column oncely.outbox.tenant is 'Routing tenant: the first of the batch. A mirror record may carry tags of several tenants.';
comment on column oncely.outbox.id is 'Random (version 7); says nothing about order.';
comment on column oncely.outbox.kind is 'mirror: tags for Redis.';
comment on column oncely.outbox.created_at is 'When the batch was claimed. The garbage collection deletes no key that is not older than the oldest of these.';
comment on column oncely.outbox.expires_at is 'When the first of the mirrored keys may be collected: no mirror entry may live longer.';
comment on column oncely.outbox.tags is 'Tags of 16 bytes each, of the keys that the batch completed.';
create index outbox_created_at on oncely.outbox (created_at);
comment on index oncely.outbox_created_at is 'For the relay, and for the age of the oldest record.';
