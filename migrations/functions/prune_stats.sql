-- Removes old rows apart from the roll-up, so that a failure of the roll-up keeps none.
create or replace function oncely.prune_stats() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before timestamptz := clock_timestamp() - interval '7 days';
    spans bigint;
    minutes bigint;
begin
    delete from oncely.stats as s
    where (s.at, s.consumer, s.process) in (
        select o.at, o.consumer, o.process
        from oncely.stats as o
        where o.at < before
        for update skip locked
    );
    get diagnostics spans = row_count;
    delete from oncely.relay_stats as s
    where (s.at, s.target, s.process) in (
        select o.at, o.target, o.process
        from oncely.relay_stats as o
        where o.at < before
        for update skip locked
    );
    get diagnostics minutes = row_count;
    return spans + minutes;
end
$$;
comment on function oncely.prune_stats is
    'Removes spans and minutes that are older than seven days; returns how many.';
revoke execute on function oncely.prune_stats from public;
