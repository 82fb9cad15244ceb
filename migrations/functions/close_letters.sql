create or replace function oncely.close_letters(held oncely.idempotency_keys, at timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    with open as materialized (
        select d.tenant, d.id
        from oncely.dead_letters as d
        where hashtextextended(d.key, 0) = hashtextextended(held.key, 0) and d.key = held.key
            and d.tenant = held.tenant and d.consumer = held.consumer and d.state in ('waiting', 'requeueing')
            and coalesce(oncely.same_payload(held.fingerprint, d.fingerprint), true)
        order by d.tenant, d.id
        for update
    )
    update oncely.dead_letters as d
    set state = 'requeued', updated_at = at,
        -- No dead-letter queue has a copy of a client's letter.
        swept_at = case when d.from_client then at end
    from open as o
    where d.tenant = held.tenant and d.tenant = o.tenant and d.id = o.id;
end
$$;
comment on function oncely.close_letters is
    'Closes the dead letters of a key, which is locked, and takes effect after all: as a requeue does that finds it '
    'done.';
revoke execute on function oncely.close_letters from public;
