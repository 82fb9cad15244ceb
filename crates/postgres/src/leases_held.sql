-- Lists held leases, oldest first within a consumer, from a place on, through the index of held keys.
select i.tenant, i.consumer, i.key, i.owner as "owner!", i.fencing_token as "token!",
    -- The token is the time of the claim, unless the clock was set back.
    oncely.bounded(to_timestamp(i.fencing_token / 1000000.0)) as "since!", oncely.bounded(i.not_before) as "ends_at!",
    oncely.bounded(i.run_ends_at) as "run_ends_at!", i.attempts, i.crash_attempts
from oncely.idempotency_keys as i
where i.owner is not null
  and ($1::text is null or i.consumer = $1)
  -- Worded to match no other index: without statistics, the primary key with all of a tenant's keys would look equal.
  and ($2::text is null or (i.tenant = $2) is true)
  and ($3::text is null or i.key = $3)
  and ($4::timestamptz is null or i.not_before <= $4)
  and ($5::text is null or (i.consumer, i.fencing_token, i.tenant, i.key) > ($5, $6, $7, $8))
order by i.consumer, i.fencing_token, i.tenant, i.key
limit $9
