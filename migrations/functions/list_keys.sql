-- Lists keys (see oncely.visible_tenants), page by page along an index, without responses, which an auditor may not
-- read.
create or replace function oncely.list_keys(
    of_tenant text default null, of_consumer text default null, of_status oncely.key_status default null,
    since timestamptz default null, until timestamptz default null, behind timestamptz default null,
    behind_tenant text default null, behind_consumer text default null, behind_key text default null,
    most bigint default 100
)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, crash_attempts integer,
    created_at timestamptz, completed_at timestamptz, expires_at timestamptz, not_before timestamptz, reason text,
    error_code text, last_error text
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the status, to use its partial index.
set plan_cache_mode = force_custom_plan
-- Prevents a scan of a large table under outdated statistics.
set enable_seqscan = off
set enable_bitmapscan = off
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    if of_status is null then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.tenant = of_tenant
            and (visible is null or i.tenant = any (visible))
            and (of_consumer is null or i.consumer = of_consumer)
            and (behind_consumer is null or (i.consumer, i.key) > (behind_consumer, behind_key))
        order by i.consumer, i.key
        limit most;
    elsif of_status = 'IN_PROGRESS' then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.created_at >= since)
            and (until is null or i.created_at < until)
            and (
                behind is null
                or i.created_at <= behind and (i.created_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.created_at desc, i.tenant desc, i.key desc
        limit most;
    else
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.completed_at >= since)
            and (until is null or i.completed_at < until)
            and (
                behind is null
                or i.completed_at <= behind and (i.completed_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.completed_at desc, i.tenant desc, i.key desc
        limit most;
    end if;
end
$$;
comment on function oncely.list_keys is
    'Keys without what their handlers answered: without a status those of a tenant, by consumer and key; else those of '
    'a consumer, the newest first (by their end; of IN_PROGRESS by their beginning). For operators and auditors; a '
    'member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_keys from public;
