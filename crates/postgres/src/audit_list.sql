-- Lists decisions, newest first. A null parameter turns its filter off.
select tenant as "tenant!", occurred_at as "occurred_at!", consumer as "consumer!", key as "key!", queue as "queue!", outcome as "outcome!", reason,
    error_code, detail, attempt as "attempt!", duration_us, worker as "worker!", login, trace_id
from oncely.list_audit(
    of_tenant => $1, of_consumer => $2, of_key => $3, of_outcome => $4, of_reason => $5, since => $6, until => $7, most => $8
)
