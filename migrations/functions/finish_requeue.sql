create or replace function oncely.finish_requeue(tenants text[], ids uuid[], generations integer[])
returns table (tenant text, id uuid, generation integer)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
begin
    return query
    with meant as materialized (
        select d.tenant, d.id
        from unnest(finish_requeue.tenants, finish_requeue.ids, finish_requeue.generations)
            as l (tenant, id, generation)
        join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
        where oncely.in_group(d.tenant, finish_requeue.tenants) and d.state = 'requeueing'
        order by d.tenant, d.id
        for update of d
    )
    update oncely.dead_letters as d
    set state = 'requeued', updated_at = at,
        -- No dead-letter queue has a copy of a client's letter.
        swept_at = case when d.from_client then at end
    from meant as m
    where oncely.in_group(d.tenant, finish_requeue.tenants) and d.tenant = m.tenant and d.id = m.id
    returning d.tenant, d.id, d.generation;
end
$$;
comment on function oncely.finish_requeue is
    'Closes dead letters that are being requeued: they were published, or took effect. Returns those that were '
    'changed. For operators.';
revoke execute on function oncely.finish_requeue from public;
