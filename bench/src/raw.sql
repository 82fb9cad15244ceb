-- What a batch costs PostgreSQL at the least: the rows that a worker leaves behind, in one statement.
with keys as (
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select k.tenant, 'payments', k.key, 'COMPLETED', 1, $1, $1, k.fingerprint
    from unnest($2::text[], $3::text[], $4::bytea[]) as k (tenant, key, fingerprint)
), payments as (
    insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
    select p.tenant, p.key, p.customer, p.amount, 'EUR', 0
    from unnest($2::text[], $3::text[], $6::integer[], $7::bigint[]) as p (tenant, key, customer, amount)
), mirror as (
    insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
    values (($2::text[])[1], $5::uuid, 'mirror', $1, $1 + interval '7 days', 'payments', $8)
)
insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
select a.tenant, $1, 1, 1000, 'payments', a.key, $9, 'completed', 'raw'
from unnest($2::text[], $3::text[]) as a (tenant, key)
