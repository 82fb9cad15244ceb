-- Keeps letters at least as long as the trail: the floor is the schema owner's to set, and neither the caller's time
-- nor a clock that jumped brings it nearer.
create or replace function oncely.collect_dead_letters(closed_before timestamptz, most bigint, unit text default '')
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before timestamptz;
    tenants text[];
    ids uuid[];
    gone bigint;
begin
    select least(
            collect_dead_letters.closed_before, least(u.clock_seen_at, clock_timestamp()) - c.audit_floor
        )
    into before
    from oncely.maintenance as u
    cross join oncely.cell as c;
    -- Skips letters that wait, and letters without a later sweep of their queue: a copy left there would be unknown.
    execute format(
        $lock$
        select array_agg(l.tenant), array_agg(l.id)
        from (
            select d.tenant, d.id
            from %s as d
            where d.state in ('requeued', 'discarded') and d.updated_at < $1 and d.dead_lettered_at < $1
                and d.swept_at is not null
            order by d.updated_at
            limit $2
            for update skip locked
        ) as l
        $lock$,
        oncely.unit_table(unit, 'dead_letters')
    ) using before, most into tenants, ids;
    delete from oncely.dead_letters as d
    using unnest(tenants, ids) as l (tenant, id)
    where oncely.in_group(d.tenant, tenants) and d.tenant = l.tenant and d.id = l.id;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.collect_dead_letters is
    'Deletes a bounded batch of a unit''s letters that were requeued or discarded before a time, and none that was '
    'closed after '
    'oncely.cell.audit_floor ago. Returns how many that is. For the garbage collection.';
revoke execute on function oncely.collect_dead_letters from public;
