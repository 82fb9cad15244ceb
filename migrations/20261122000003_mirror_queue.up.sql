set local search_path = pg_catalog, pg_temp;

-- Holds records on their way to Redis, written in the transaction that decided them. The relay uses SKIP LOCKED.
--
-- A worker writes a batch's tags, made with the key of the mirror. No client of oncely.claim should hold that key,
-- since it could forge tags: oncely.complete writes the identity instead, and the relay makes the tag.
create table oncely.mirror_queue (
    tenant text collate "C" not null,
    id uuid not null,
    kind text collate "C" not null,
    created_at timestamptz not null,
    expires_at timestamptz not null,
    completed_at timestamptz,
    consumer text collate "C" not null,
    tags bytea,
    key text collate "C",
    fingerprint bytea,
    constraint mirror_queue_pkey primary key (tenant, id),
    constraint mirror_queue_kind check (kind in ('mirror', 'identity')),
    constraint mirror_queue_tags check (octet_length(tags) between 16 and 65536 and octet_length(tags) % 16 = 0),
    constraint mirror_queue_identity check (
        (kind = 'identity') = (key is not null) and (kind = 'mirror') = (tags is not null)
        and octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
        and octet_length(fingerprint) = 16
    ),
    constraint mirror_queue_times check (
        least(created_at, expires_at, completed_at) >= '1970-01-01 00:00:00+00'
        and greatest(created_at, expires_at, completed_at) <= '9999-12-31 00:00:00+00'
    )
);
-- Tags are random bytes: compressing them, or cutting them into chunks for another table, is useless, up to a page.
alter table oncely.mirror_queue alter column tags set storage external;
alter table oncely.mirror_queue set (toast_tuple_target = 8160);
comment on table oncely.mirror_queue is 'Records on their way to Redis; a row goes when it has arrived.';
comment on column oncely.mirror_queue.tenant is
    'Routing tenant: the first of the batch. A mirror record may carry tags of several tenants.';
comment on column oncely.mirror_queue.id is 'Random (version 7); says nothing about order.';
comment on column oncely.mirror_queue.kind is 'mirror: tags for Redis. identity: a key whose tag the relay makes.';
comment on column oncely.mirror_queue.created_at is
    'When the batch was claimed; of a key that is said again, when that was. The garbage collection deletes no key '
    'that is not older than the oldest of these, or of completed_at where a record has one.';
comment on column oncely.mirror_queue.expires_at is
    'When the first of the mirrored keys may be collected, as the writer of the record knew it: no mirror entry may '
    'live longer. The relay heeds a retention that was shortened meanwhile.';
comment on column oncely.mirror_queue.consumer is 'The consumer of the keys that took effect.';
comment on column oncely.mirror_queue.completed_at is
    'identity: when the key took effect, where it is said again (oncely.mirror_again), or has no end of its own.';
comment on column oncely.mirror_queue.tags is 'mirror: tags of 16 bytes each, of the keys that the batch completed.';
comment on column oncely.mirror_queue.key is 'identity: the key that took effect.';
comment on column oncely.mirror_queue.fingerprint is
    'identity: its fingerprint, as in idempotency_keys; null where nothing is compared.';
create index mirror_queue_created_at on oncely.mirror_queue (created_at);
comment on index oncely.mirror_queue_created_at is 'For the relay, and for the age of the oldest record.';
create index mirror_queue_protects on oncely.mirror_queue ((coalesce(completed_at, created_at)));
comment on index oncely.mirror_queue_protects is
    'For the garbage collection: no key that is not older than the oldest of these.';

-- from functions/delete_mirrored.sql
-- Deletes records for logins without a right to the table: with a right to delete, a login may lock all of it.
create or replace function oncely.delete_mirrored(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.mirror_queue as q
    using unnest(tenants, ids) as d (tenant, id)
    where oncely.in_group(q.tenant, tenants) and q.tenant = d.tenant and q.id = d.id;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_mirrored is
    'Deletes records that the mirror has. Returns how many there were. For relays.';
revoke execute on function oncely.delete_mirrored from public;

-- end of functions
