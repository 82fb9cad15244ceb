-- Claims the keys of a batch that have no row yet: each returned row may run in this transaction. Inserts rows as
-- COMPLETED: they become visible only with the commit, like the effect. Inserts in key order, so that two batches with
-- common keys wait for each other in one direction only (no deadlock). Runs as a separate statement: with a look-up in
-- it, the loser of a race would see neither its insert nor the winner's row (its snapshot is older).
insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
select k.tenant, $1, k.key, 'COMPLETED', 1, $2, $2, k.fingerprint
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
on conflict (tenant, consumer, key) do nothing
returning tenant, key
