create or replace function oncely.collect_ordering_keys(
    used_before timestamptz, after_tenant text, after_key text, most bigint, unit text default '',
    out last_tenant text, out last_key text, out gone bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    tenants text[];
    keys text[];
begin
    execute format(
        $lock$
        select array_agg(i.tenant order by i.tenant, i.ordering_key),
            array_agg(i.ordering_key order by i.tenant, i.ordering_key)
        from (
            select k.tenant, k.ordering_key
            from %s as k
            where k.used_at < $1 and (k.tenant, k.ordering_key) > ($2, $3)
            order by k.tenant, k.ordering_key
            limit $4
            for update skip locked
        ) as i
        $lock$,
        oncely.unit_table(unit, 'ordering_keys')
    ) using used_before, after_tenant, after_key, most into tenants, keys;
    last_tenant := tenants[cardinality(tenants)];
    last_key := keys[cardinality(keys)];
    -- A separate statement, with a snapshot taken under the locks: a transaction that emitted under one of these keys
    -- held its row until the commit, so its event is visible here. In one statement it would not be, and numbering
    -- would restart behind it.
    delete from oncely.ordering_keys as k
    using unnest(tenants, keys) as i (tenant, ordering_key)
    where oncely.in_group(k.tenant, tenants) and k.tenant = i.tenant and k.ordering_key = i.ordering_key
        and not exists (
            select from oncely.events as e
            where oncely.in_group(e.tenant, tenants) and e.tenant = k.tenant and e.ordering_key = k.ordering_key
        );
    get diagnostics gone = row_count;
end
$$;
comment on function oncely.collect_ordering_keys is
    'Deletes a bounded batch of a unit''s idle ordering keys without events, behind a key, and returns the last one '
    'looked at.';
revoke execute on function oncely.collect_ordering_keys from public;
