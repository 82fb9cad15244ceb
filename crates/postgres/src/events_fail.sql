-- Counts a failure of events that the broker returned or refused, and schedules their next attempt or parks them.
update oncely.events as e
set attempts = f.attempts, available_at = f.available_at, state = case when f.parked then 'parked' else 'pending' end,
    reason = f.reason, last_error = f.error
from unnest($1::text[], $2::uuid[], $3::integer[], $4::timestamptz[], $5::boolean[], $6::text[], $7::text[])
    as f (tenant, id, attempts, available_at, parked, reason, error)
where oncely.in_group(e.tenant, $1) and e.tenant = f.tenant and e.id = f.id
