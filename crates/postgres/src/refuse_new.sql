-- Records refusals by handlers as answers, for keys without a row, after a rollback. Leaves existing keys to
-- refuse.sql.
insert into oncely.idempotency_keys
    (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, response)
select r.tenant, $1, r.key, 'COMPLETED', r.attempts, $2, $2, r.fingerprint, 'refused', jsonb_build_object('refused', r.why)
from unnest($3::text[], $4::text[], $5::integer[], $6::bytea[], $7::text[]) as r (tenant, key, attempts, fingerprint, why)
order by r.tenant collate "C", r.key collate "C"
on conflict (tenant, consumer, key) do nothing
