-- Lists events (see oncely.visible_tenants), without messages, which an auditor may not read.
create or replace function oncely.list_events(
    of_tenant text default null, of_exchange text default null, of_routing_key text default null,
    of_ordering_key text default null, of_reason text default null, until timestamptz default null,
    of_ids uuid[] default null, of_state text default null, behind_id uuid default null, most bigint default 100
)
returns table (
    tenant text, id uuid, created_at timestamptz, available_at timestamptz, attempts integer, state text,
    reply boolean, exchange text, routing_key text, ordering_key text, ordering_number bigint, message_id text,
    type text, correlation_id text, reason text, last_error text
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
    if behind_id is null then
        return query
        select e.tenant, e.id, oncely.bounded(e.created_at), oncely.bounded(e.available_at), e.attempts, e.state,
            e.reply, e.exchange, e.routing_key, e.ordering_key, e.ordering_number, e.message_id, e.type,
            e.correlation_id, e.reason, e.last_error
        from oncely.events as e
        where (visible is null or e.tenant = any (visible))
            and (of_tenant is null or e.tenant = of_tenant)
            and (of_exchange is null or e.exchange = of_exchange)
            and (of_routing_key is null or e.routing_key = of_routing_key)
            and (of_ordering_key is null or e.ordering_key = of_ordering_key)
            and (of_reason is null or e.reason = of_reason)
            and (until is null or e.created_at < until)
            and (of_ids is null or e.id = any (of_ids))
            and (of_state is null or e.state = of_state)
        order by e.created_at, e.id
        limit most;
    else
        return query
        select e.tenant, e.id, oncely.bounded(e.created_at), oncely.bounded(e.available_at), e.attempts, e.state,
            e.reply, e.exchange, e.routing_key, e.ordering_key, e.ordering_number, e.message_id, e.type,
            e.correlation_id, e.reason, e.last_error
        from oncely.events as e
        where (visible is null or e.tenant = any (visible)) and e.tenant = of_tenant and e.id > behind_id
        order by e.id
        limit most;
    end if;
end
$$;
comment on function oncely.list_events is
    'Events without their messages, the oldest first; with behind_id all of a tenant behind that one, by their ids. '
    'For operators and auditors; a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_events from public;
