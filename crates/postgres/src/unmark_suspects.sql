-- Removes the marks of runs that ended without a result. Returns the marked keys that another transaction holds.
with marked as materialized (
    select i.tenant, i.key
    from rows from (pg_catalog.unnest($2::text[]), pg_catalog.unnest($3::text[])) as k (tenant, key)
    join oncely.idempotency_keys as i on i.tenant = k.tenant and i.consumer = $1 and i.key = k.key
    where oncely.in_group(i.tenant, $2) and i.status = 'IN_PROGRESS' and i.crash_attempts > 0 and i.fencing_token is null
), free as materialized (
    select i.tenant, i.key
    from marked as m
    join oncely.idempotency_keys as i on i.tenant = m.tenant and i.consumer = $1 and i.key = m.key
    where oncely.in_group(i.tenant, $2)
    order by i.tenant, i.key
    for update of i skip locked
), unmarked as (
    update oncely.idempotency_keys as i
    set crash_attempts = i.crash_attempts - 1, marked_pid = null, marked_backend_start = null
    from free as f
    where oncely.in_group(i.tenant, $2) and i.tenant = f.tenant and i.consumer = $1 and i.key = f.key
      and i.status = 'IN_PROGRESS' and i.crash_attempts > 0 and i.fencing_token is null
)
select m.tenant, m.key
from marked as m
where not exists (select from free as f where f.tenant = m.tenant and f.key = m.key)
