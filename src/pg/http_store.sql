-- Stores the answer to a request whose key was claimed in this very transaction, and notes it in the trail. What follows is COMMIT, which
-- runs what the handler has deferred: along its own search_path, with its own wait for locks (pg::begin_on_pool). Returns the rows written.
with answered as (
    update oncely.idempotency_keys
    set http_status = $4, http_headers = $5, http_body = $6,
        response = case when $7 then oncely.try_jsonb($6) end,
        reason = case when $8 then 'refused' end
    where tenant = $1 and consumer = $2 and key = $3 and status = 'COMPLETED'
    returning attempts
),
noted as (
    insert into oncely.audit
        (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, detail, worker, trace_id)
    select $1, $9, a.attempts, $10, $2, $3, '', case when $8 then 'refused' else 'completed' end,
        'answered over HTTP with status ' || $4::smallint::text, $11, $12
    from answered as a
    returning key
)
select count(*) as "rows!", set_config('search_path', current_setting('oncely.handler_path'), true) as path,
    set_config('lock_timeout', current_setting('oncely.handler_lock_timeout'), true) as lock_timeout
from noted
