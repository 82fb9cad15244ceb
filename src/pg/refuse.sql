-- Records that handlers said no, and that this is the answer: rows claimed in this transaction, or (alone, after a rollback) rows that
-- may not be there yet. Without a claim of its own it touches only a key that may run again.
insert into oncely.idempotency_keys as i
    (tenant, consumer, key, status, attempts, created_at, completed_at, fingerprint, reason, response)
select r.tenant, $1, r.key, 'COMPLETED', r.attempts, $2, $2, r.fingerprint, 'refused', jsonb_build_object('refused', r.why)
from unnest($3::text[], $4::text[], $5::integer[], $6::bytea[], $7::text[]) as r (tenant, key, attempts, fingerprint, why)
order by r.tenant collate "C", r.key collate "C"
on conflict (tenant, consumer, key) do update
set status = excluded.status,
    attempts = excluded.attempts,
    completed_at = excluded.completed_at,
    fingerprint = excluded.fingerprint,
    reason = excluded.reason,
    response = excluded.response,
    last_error = null,
    expires_at = null,
    not_before = null,
    crash_attempts = 0,
    marked_pid = null,
    marked_backend_start = null
where i.status = 'IN_PROGRESS' or $8
