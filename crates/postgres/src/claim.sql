-- Claims the keys that nobody has: each row returned may run in this transaction. Straight to COMPLETED, since the row
-- is visible only when the transaction commits, and then it is.
-- In the order of the keys, so that two batches that share keys wait for each other in one direction only (no deadlock).
-- A statement of its own: in one statement with a look-up, the loser of a race sees neither its insert nor the winner's
-- row (the snapshot is older).
insert into oncely.idempotency_keys (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint)
select k.tenant, $1, k.key, 'COMPLETED', 1, $2, $2, k.fingerprint
from unnest($3::text[], $4::text[], $5::bytea[]) as k (tenant, key, fingerprint)
order by k.tenant collate "C", k.key collate "C"
on conflict (tenant, consumer, key) do nothing
returning tenant, key
