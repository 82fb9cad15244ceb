-- Lists letters (see oncely.visible_tenants), without messages, which an auditor may not read.
create or replace function oncely.list_letters(
    of_tenant text default null, of_consumer text default null, of_queue text default null,
    of_reason text default null, of_group text default null, of_key text default null,
    since timestamptz default null, until timestamptz default null, of_ids uuid[] default null,
    of_states text[] default null, behind timestamptz default null, behind_id uuid default null,
    most bigint default 100
)
returns table (
    tenant text, id uuid, consumer text, key text, dead_lettered_at timestamptz, reason text, error_code text,
    detail text, attempt integer, queue text, worker text, trace_id text, state text, generation integer,
    times integer, failure_group text, exchange text, routing_key text, body_size bigint, whole boolean,
    encrypted_by text, omitted text, updated_at timestamptz, swept_at timestamptz
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
    select d.tenant, d.id, d.consumer, d.key, oncely.bounded(d.dead_lettered_at), d.reason, d.error_code, d.detail,
        d.attempt, d.queue, d.worker, d.trace_id, d.state, d.generation, d.times, d.failure_group, d.exchange,
        d.routing_key, d.body_size, d.whole, d.encrypted_by, d.omitted, oncely.bounded(d.updated_at),
        oncely.bounded(d.swept_at)
    from oncely.dead_letters as d
    where (visible is null or d.tenant = any (visible))
        and (of_tenant is null or d.tenant = of_tenant)
        and (of_consumer is null or d.consumer = of_consumer)
        and (of_queue is null or d.queue = of_queue)
        and (of_reason is null or d.reason = of_reason)
        and (of_group is null or d.failure_group = of_group)
        and (of_key is null or (hashtextextended(d.key, 0) = hashtextextended(of_key, 0) and d.key = of_key))
        and (since is null or d.dead_lettered_at >= since)
        and (until is null or d.dead_lettered_at < until)
        and (of_ids is null or d.id = any (of_ids))
        and (of_states is null or d.state = any (of_states))
        and (behind is null or (d.dead_lettered_at, d.id) < (behind, behind_id))
    order by d.dead_lettered_at desc, d.id desc
    limit most;
end
$$;
comment on function oncely.list_letters is
    'Dead letters without their messages, the newest first, behind one where it is given. For operators and auditors; '
    'a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_letters from public;
