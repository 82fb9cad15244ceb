-- Claims keys that nobody is expected to have. Cheaper by a quarter than ON CONFLICT, whose speculative insertion takes two
-- more steps a row; a key that somebody has ends the transaction with unique_violation, and the batch is claimed the other way.
insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
select k.tenant, $1, k.key, 'COMPLETED', 1, $2, $2, k.fingerprint
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
