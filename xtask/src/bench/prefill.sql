-- $1 keys that took effect $2 days ago, 256 at a time; where $3, with their audit rows.
with filled as (
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select 'tenant-' || lpad((n % 16)::text, 2, '0'), 'payments', gen_random_uuid()::text, 'COMPLETED', 1, t.at, t.at,
        oncely.stored_fingerprint(sha256(n::text::bytea))
    from generate_series(1, $1) as n
    cross join lateral (select now() - $2 * interval '1 day' + (n / 256) * interval '5 milliseconds' as at) as t
    returning tenant, key, completed_at
)
insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
select tenant, completed_at, 1, 5000, 'payments', key, 'prefilled', 'completed', 'prefilled'
from filled
where $3
