-- Stores the answer to a request with a key that this transaction claimed (at $4), and records it in the trail. Returns
-- the number of rows written. Does not compare the status: that would match a partial index, which is long, and the
-- primary key finds one row. Runs under the handler's search_path, which COMMIT needs for deferred work: each name is
-- qualified.
with answered as (
    update oncely.idempotency_keys
    set status = 'COMPLETED', last_error = null, http_status = $5, http_headers = $6, http_body = $7,
        response = case when $8 then oncely.try_jsonb($7) end,
        reason = case when $9 then 'refused' end
    where tenant operator(pg_catalog.=) $1 and consumer operator(pg_catalog.=) $2 and key operator(pg_catalog.=) $3
        and completed_at operator(pg_catalog.=) $4 and reason operator(pg_catalog.=) 'outcome_unknown'
    returning attempts
),
noted as (
    insert into oncely.audit
        (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, detail, worker, trace_id)
    select $1, $10, a.attempts, $11, $2, $3, '', case when $9 then 'refused' else 'completed' end,
        pg_catalog.concat('answered over HTTP with status ', $5::pg_catalog.int2), $12, $13
    from answered as a
    returning key
)
select pg_catalog.count(*) as "rows!" from noted
