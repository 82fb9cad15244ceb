-- Lists decisions, for the command line, the console and psql (see oncely.visible_tenants). A null parameter turns its
-- filter off. A key is found through the index on its hash; else the caller chooses a span with few rows. The trail has
-- no key, and rows of one batch share a time: their place in the table tells them apart.
create or replace function oncely.list_audit(
    of_tenant text default null, of_consumer text default null, of_key text default null,
    of_outcome text default null, of_reason text default null, of_worker text default null,
    since timestamptz default null, until timestamptz default null,
    behind timestamptz default null, behind_part bigint default null, behind_place text default null,
    most bigint default 100
)
returns table (
    tenant text, occurred_at timestamptz, consumer text, key text, queue text, outcome text, reason text,
    error_code text, detail text, attempt integer, duration_us bigint, worker text, login text, trace_id text,
    part bigint, place text
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select a.tenant, oncely.bounded(a.occurred_at), a.consumer, a.key, a.queue, a.outcome, a.reason, a.error_code,
        a.detail, a.attempt, a.duration_us, a.worker, a.login, a.trace_id, a.tableoid::bigint, a.ctid::text
    from oncely.audit as a
    where (visible is null or a.tenant = any (visible))
        and (since is null or a.occurred_at >= since)
        and (until is null or a.occurred_at < until)
        and (behind is null or (a.occurred_at, a.tableoid::bigint, a.ctid) < (behind, behind_part, behind_place::tid))
        and (of_tenant is null or a.tenant = of_tenant)
        and (of_consumer is null or a.consumer = of_consumer)
        and (of_key is null or (hashtextextended(a.key, 0) = hashtextextended(of_key, 0) and a.key = of_key))
        and (of_outcome is null or a.outcome = of_outcome)
        and (of_reason is null or a.reason = of_reason)
        and (of_worker is null or a.worker = of_worker)
    order by a.occurred_at desc, a.tableoid::bigint desc, a.ctid desc
    limit most;
end
$$;
comment on function oncely.list_audit is
    'The newest decisions of a span, behind a place where one is given. For operators and auditors; a member of '
    'oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_audit from public;
