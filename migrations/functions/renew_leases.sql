-- Renews many leases at once. Skips a locked row, which is being finished or taken over, until the next renewal. Finds
-- each key through the primary key, whatever the statistics at planning time: the plan is kept. Hence neither scans nor
-- other joins, and a held key is one with run_ends_at (see idempotency_keys_held).
create or replace function oncely.renew_leases(
    tenants text[],
    consumer text,
    keys text[],
    tokens bigint[],
    lease interval,
    out place bigint,
    out remaining interval,
    out is_held boolean
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    ends timestamptz := at + lease;
begin
    return query
        with asked as materialized (
            select a.tenant, a.key, a.token, a.place
            from unnest(tenants, keys, tokens) with ordinality as a (tenant, key, token, place)
        ),
        free as materialized (
            select i.tenant, i.key
            from asked as a
            join oncely.idempotency_keys as i
                on i.tenant = a.tenant and i.consumer = renew_leases.consumer and i.key = a.key
            where oncely.in_group(i.tenant, tenants) and i.fencing_token = a.token and i.run_ends_at > at
            for update of i skip locked
        ),
        renewed as (
            update oncely.idempotency_keys as i
            -- As oncely.lease_end.
            set not_before = least(greatest(i.not_before, ends), i.run_ends_at)
            from free as f
            where oncely.in_group(i.tenant, tenants) and i.tenant = f.tenant and i.consumer = renew_leases.consumer
                and i.key = f.key
            returning i.tenant, i.key, i.not_before
        )
        select a.place, r.not_before - at,
            r.key is not null or coalesce(i.fencing_token = a.token and i.run_ends_at > at, false)
        from asked as a
        left join renewed as r on r.tenant = a.tenant and r.key = a.key
        left join oncely.idempotency_keys as i
            on oncely.in_group(i.tenant, tenants) and i.tenant = a.tenant and i.consumer = renew_leases.consumer
                and i.key = a.key;
end
$$;
comment on function oncely.renew_leases is
    'oncely.renew_lease for many keys at once, by their places: what is left; null where the row is locked now '
    '(is_held) or the lease is lost (not is_held). For workers.';
revoke execute on function oncely.renew_leases from public;
