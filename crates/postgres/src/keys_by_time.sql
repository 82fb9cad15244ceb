-- Lists a consumer's keys of a status, newest first, from a place on, through the partial index of that status.
select tenant as "tenant!", consumer as "consumer!", key as "key!", status as "status!", attempts as "attempts!",
    crash_attempts as "crash_attempts!", created_at as "created_at!", completed_at, expires_at, not_before, reason, error_code, last_error
from oncely.list_keys(
    of_status => $1::text::oncely.key_status, of_consumer => $2, of_tenant => $3, since => $4, until => $5, behind => $6, behind_tenant => $7,
    behind_key => $8, most => $9
)
