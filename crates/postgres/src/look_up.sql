-- Returns the state of these keys, without responses: no decision depends on a response, and a client of
-- oncely.complete may have stored one that Rust can't hold (jsonb takes 1e400). A key neither claimed nor found was
-- collected in between: claim again.
select i.tenant, i.key, i.status::text as "status!", i.fingerprint, i.attempts, i.crash_attempts, i.reason, pg_catalog.left(i.last_error, 1000) as last_error, i.error_code, i.not_before,
    -- Whether another session serves the counted run; checked only for keys that are marked.
    case when i.marked_pid <> pg_catalog.pg_backend_pid() then oncely.is_at_work(i.marked_pid, i.marked_backend_start)
    else false end as is_running, i.fencing_token is not null as "is_leased!"
from rows from (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])) as k (tenant, key)
join oncely.idempotency_keys as i on i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
where oncely.in_group(i.tenant, $2)
