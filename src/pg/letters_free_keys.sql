-- Makes the keys of these letters runnable again: only where a key was given up, with this very payload.
update oncely.idempotency_keys as i
set status = 'IN_PROGRESS', attempts = 0, crash_attempts = 0, completed_at = null, reason = null
from unnest($1::text[], $2::uuid[]) as l (tenant, id)
join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
where i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key and i.status = 'FAILED'
  and coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true)
