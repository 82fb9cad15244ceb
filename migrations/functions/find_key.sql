create or replace function oncely.find_key(of_key text, of_tenant text default null, of_consumer text default null)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, created_at timestamptz,
    completed_at timestamptz, expires_at timestamptz, fingerprint bytea, http_status smallint, reason text,
    last_error text, not_before timestamptz, owner text, fencing_token bigint
)
language plpgsql stable security definer rows 10
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select i.tenant, i.consumer, i.key, i.status::text, i.attempts, oncely.bounded(i.created_at),
        oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), i.fingerprint, i.http_status, i.reason,
        i.last_error, oncely.bounded(i.not_before), i.owner, i.fencing_token
    from (
        -- The primary key begins with the tenant: an unknown one is found through the trail's index on the key's hash.
        select a.tenant, a.consumer
        from oncely.audit as a
        where of_tenant is null and hashtextextended(a.key, 0) = hashtextextended(of_key, 0) and a.key = of_key
            and (visible is null or a.tenant = any (visible))
        -- Undecided keys are not in the trail: claimed and left, at work, parked. They are few, in the partial indexes.
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'FAILED' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'IN_PROGRESS' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where k.tenant = of_tenant and k.key = of_key
            -- Checked before the index is read: the session's counters would reveal whether the key exists.
            and (visible is null or of_tenant = any (visible))
    ) as n
    join oncely.idempotency_keys as i on i.tenant = n.tenant and i.consumer = n.consumer and i.key = of_key
    where (visible is null or i.tenant = any (visible))
        and (of_consumer is null or i.consumer = of_consumer)
    order by i.tenant, i.consumer;
end
$$;
comment on function oncely.find_key is
    'What is known of a key, without what its handlers answered, under each tenant and consumer that has it. For '
    'operators and auditors; a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.find_key from public;
