-- Lists dead letters, newest first. A null parameter turns its filter off. Omits messages, which an auditor may not
-- read.
select tenant as "tenant!", id as "id!", consumer as "consumer!", key as "key!", dead_lettered_at as "dead_lettered_at!", reason as "reason!",
    error_code, detail, attempt as "attempt!", queue as "queue!", worker as "worker!", trace_id, state as "state!", generation as "generation!",
    times as "times!", failure_group as "failure_group!", exchange as "exchange!", routing_key as "routing_key!", body_size as "body_size!",
    whole as "whole!", encrypted_by, omitted, updated_at as "updated_at!", swept_at
from oncely.list_letters(
    of_tenant => $1, of_consumer => $2, of_queue => $3, of_reason => $4, of_group => $5, of_key => $6, since => $7, until => $8, of_ids => $9,
    of_states => $10, most => $11, behind => $12, behind_id => $13
)
