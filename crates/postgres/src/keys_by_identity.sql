-- Lists a tenant's keys in primary-key order, from a place on.
select tenant as "tenant!", consumer as "consumer!", key as "key!", status as "status!", attempts as "attempts!",
    crash_attempts as "crash_attempts!", created_at as "created_at!", completed_at, expires_at, not_before, reason, error_code, last_error
from oncely.list_keys(
    of_tenant => $1, of_consumer => $2, behind_consumer => $3, behind_key => $4, most => $5
)
