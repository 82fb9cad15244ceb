-- Combines old spans into minutes. No process may write a span older than an hour (check_stats), so a minute made here
-- is complete. Caps sums at the bounds: one excessive span must not end this for all. Leaves rows that another
-- transaction holds for the next call.
create or replace function oncely.roll_up_stats() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    -- As in the constraints. Sums are numeric, with room for all.
    most constant bigint := 1000000000000;
    before_time constant timestamptz :=
        date_bin(interval '1 minute', clock_timestamp() - interval '2 hours', timestamptz 'epoch');
    times timestamptz[];
    names text[];
    processes uuid[];
    rolled bigint;
begin
    select array_agg(o.at), array_agg(o.consumer), array_agg(o.process) into times, names, processes
    from (
        select s.at, s.consumer, s.process
        from oncely.stats as s
        where s.at < before_time and s.process <> nobody
        for update skip locked
    ) as o;
    with spans as (
        delete from oncely.stats as s
        using unnest(times, names, processes) as old (at, name, process)
        where s.at = old.at and s.consumer = old.name and s.process = old.process
        returning s.*, date_bin(interval '1 minute', s.at, timestamptz 'epoch') as minute
    )
    insert into oncely.stats as m (
        at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks,
        outages, durations
    )
    select s.minute, s.consumer, nobody,
        least(sum(s.delivered), most), least(sum(s.completed), most), least(sum(s.refused), most),
        least(sum(s.duplicates), most), least(sum(s.retried), most), least(sum(s.postponed), most),
        least(sum(s.dead_lettered), most), least(sum(s.fallbacks), most), least(sum(s.outages), most),
        array[
            least(sum(s.durations[1]), most), least(sum(s.durations[2]), most), least(sum(s.durations[3]), most),
            least(sum(s.durations[4]), most), least(sum(s.durations[5]), most), least(sum(s.durations[6]), most),
            least(sum(s.durations[7]), most), least(sum(s.durations[8]), most), least(sum(s.durations[9]), most),
            least(sum(s.durations[10]), most), least(sum(s.durations[11]), most), least(sum(s.durations[12]), most),
            least(sum(s.durations[13]), most), least(sum(s.durations[14]), most), least(sum(s.durations[15]), most),
            least(sum(s.durations[16]), most), least(sum(s.durations[17]), most), least(sum(s.durations[18]), most),
            least(sum(s.durations[19]), most), least(sum(s.durations[20]), most)
        ]::bigint[]
    from spans as s
    group by s.minute, s.consumer
    -- Another relay has made the minute, and spans came in since: adds them.
    on conflict (at, consumer, process) do update
    set
        delivered = least(m.delivered + excluded.delivered, most),
        completed = least(m.completed + excluded.completed, most),
        refused = least(m.refused + excluded.refused, most),
        duplicates = least(m.duplicates + excluded.duplicates, most),
        retried = least(m.retried + excluded.retried, most),
        postponed = least(m.postponed + excluded.postponed, most),
        dead_lettered = least(m.dead_lettered + excluded.dead_lettered, most),
        fallbacks = least(m.fallbacks + excluded.fallbacks, most),
        outages = least(m.outages + excluded.outages, most),
        durations = (
            select array_agg(least(a.number + b.number, most) order by a.bucket)
            from unnest(m.durations) with ordinality as a (number, bucket)
            join unnest(excluded.durations) with ordinality as b (number, bucket) using (bucket)
        );
    get diagnostics rolled = row_count;

    with old as (
        select o.at, o.target, o.process
        from oncely.relay_stats as o
        where o.at < before_time and o.process <> nobody
        for update skip locked
    ),
    spans as (
        delete from oncely.relay_stats as s
        using old
        where s.at = old.at and s.target = old.target and s.process = old.process
        returning s.*, date_bin(interval '1 minute', s.at, timestamptz 'epoch') as minute
    )
    insert into oncely.relay_stats as m (at, target, process, relayed, failed, parked, records, oldest_age)
    select s.minute, s.target, nobody,
        least(sum(s.relayed), most), least(sum(s.failed), most), least(sum(s.parked), most),
        least(max(s.records), most), least(max(s.oldest_age), 10000000000)
    from spans as s
    group by s.minute, s.target
    on conflict (at, target, process) do update
    set relayed = least(m.relayed + excluded.relayed, most), failed = least(m.failed + excluded.failed, most),
        parked = least(m.parked + excluded.parked, most), records = greatest(m.records, excluded.records),
        oldest_age = greatest(m.oldest_age, excluded.oldest_age);
    return rolled;
end
$$;
comment on function oncely.roll_up_stats is
    'Makes minutes of all processes from spans that are older than two hours; returns how many were made or added to.';
revoke execute on function oncely.roll_up_stats from public;
