-- Keys number $1 to $2 - 1 of $3, random UUIDs in the order in which they took effect: from $4 on, evenly over $5 seconds, 16 at a time.
-- Their rows of the trail: of the last eighth with their own times; an eighth for each week before, up to the eighth week before $6.
with filled as (
    insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
    select 'tenant-' || lpad((n % 16)::text, 2, '0'), 'payments', gen_random_uuid()::text, 'COMPLETED', 1, t.at, t.at,
        oncely.stored_fingerprint(sha256(n::text::bytea))
    from generate_series($1, $2 - 1) as n
    cross join lateral (select $4::timestamptz + make_interval(secs => (n / 16 * 16) * $5 / $3) as at) as t
    returning tenant, key, completed_at
), aged as (
    select tenant, key, completed_at, (1 - extract(epoch from completed_at - $4::timestamptz)::double precision / $5) * 8 as eighths
    from filled
)
insert into oncely.audit (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker)
select tenant,
    case
        when eighths < 1 then completed_at
        else $6::timestamptz - least(floor(eighths) + 1, 8) * interval '7 days'
            + least(1 - (eighths - floor(eighths)), 0.9999) * interval '7 days'
    end,
    1, 5000, 'payments', key, $7, 'completed', 'prefilled-1234'
from aged
