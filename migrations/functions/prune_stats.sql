-- Removes old rows apart from the roll-up, so that a failure of the roll-up keeps none.
create or replace function oncely.prune_stats() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    before timestamptz := clock_timestamp() - interval '7 days';
    -- The rows that no other transaction holds: all copies of the table, where there are some, lose the same ones.
    times timestamptz[];
    names text[];
    processes uuid[];
    spans bigint;
    minutes bigint;
begin
    select array_agg(o.at), array_agg(o.consumer), array_agg(o.process) into times, names, processes
    from (
        select r.at, r.consumer, r.process from oncely.stats as r where r.at < before for update skip locked
    ) as o;
    delete from oncely.stats as s
    using unnest(times, names, processes) as o (at, name, process)
    where s.at = o.at and s.consumer = o.name and s.process = o.process;
    get diagnostics spans = row_count;
    select array_agg(o.at), array_agg(o.target), array_agg(o.process) into times, names, processes
    from (
        select r.at, r.target, r.process from oncely.relay_stats as r where r.at < before for update skip locked
    ) as o;
    delete from oncely.relay_stats as s
    using unnest(times, names, processes) as o (at, name, process)
    where s.at = o.at and s.target = o.name and s.process = o.process;
    get diagnostics minutes = row_count;
    return spans + minutes;
end
$$;
comment on function oncely.prune_stats is
    'Removes spans and minutes that are older than seven days; returns how many.';
revoke execute on function oncely.prune_stats from public;
