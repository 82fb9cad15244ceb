-- Claims keys that are expected to have no row. A quarter cheaper than ON CONFLICT, because speculative insertion takes
-- two more steps per row; an existing key ends the transaction with unique_violation, and the caller claims with
-- claim.sql.
insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
select k.tenant, $1, k.key, 'COMPLETED', 1, $2, $2, k.fingerprint
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
