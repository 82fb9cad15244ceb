-- Lists the newest decisions of a span of time, or only those behind a position. A null parameter turns its filter off.
-- The caller chooses a span with few rows, or a key, which is found through the index on its hash.
select tenant as "tenant!", occurred_at as "occurred_at!", consumer as "consumer!", key as "key!", queue as "queue!", outcome as "outcome!", reason,
    error_code, detail, attempt as "attempt!", duration_us, worker as "worker!", login, trace_id, part as "partition!", place as "place!"
from oncely.list_audit(
    since => $1, until => $2, behind => $3, behind_part => $4, behind_place => $5, of_tenant => $6, of_consumer => $7, of_key => $8,
    of_outcome => $9, of_reason => $10, of_worker => $11, most => $12
)
