set local search_path = pg_catalog, pg_temp;

-- How much was done, and how fast: what screens show comes from here and never from counting keys or the trail, which
-- hold millions of rows. Each process adds up for itself and writes one row a consumer every ten seconds, outside of
-- every transaction that does work. After two hours the rows of all processes become one a minute.
create table oncely.stats (
    at timestamptz not null,
    consumer text collate "C" not null,
    process uuid not null,
    delivered bigint not null,
    completed bigint not null,
    refused bigint not null,
    duplicates bigint not null,
    retried bigint not null,
    postponed bigint not null,
    dead_lettered bigint not null,
    fallbacks bigint not null,
    outages bigint not null,
    durations bigint[] not null,
    login text,
    constraint stats_pkey primary key (at, consumer, process),
    -- More than any process counts, and so little that sums have room.
    constraint stats_counts check (
        least(
            delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks, outages
        ) >= 0
        and greatest(
            delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks, outages
        ) <= 1000000000000
    ),
    constraint stats_durations check (
        array_ndims(durations) = 1 and cardinality(durations) = 20 and array_position(durations, null) is null
        and 0 <= all (durations) and 1000000000000 >= all (durations)
    ),
    constraint stats_times check (
        at >= '1970-01-01 00:00:00+00' and at <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.stats is
    'What consumers did, in spans of ten seconds by process, and after two hours in minutes of all processes together; '
    'kept for seven days.';
comment on column oncely.stats.at is 'Beginning of the span.';
comment on column oncely.stats.consumer is 'The consumer.';
comment on column oncely.stats.process is 'oncely.processes.id; all zeros for a minute of all processes.';
comment on column oncely.stats.delivered is 'Deliveries that the broker handed over.';
comment on column oncely.stats.completed is 'Messages that took effect.';
comment on column oncely.stats.refused is 'Messages that the handler refused: an answer, no failure.';
comment on column oncely.stats.duplicates is 'Deliveries of messages that had taken effect before; no handler ran.';
comment on column oncely.stats.retried is 'Runs that failed and are tried again.';
comment on column oncely.stats.postponed is 'Deliveries that wait in a queue without an attempt.';
comment on column oncely.stats.dead_lettered is 'Messages that were dead-lettered.';
comment on column oncely.stats.fallbacks is 'Batches that failed as a whole and were told apart.';
comment on column oncely.stats.outages is
    'Times that PostgreSQL was away, or failed for a reason that is no message''s.';
comment on column oncely.stats.durations is
    'How many deliveries were settled within 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, '
    '0.75, 1, 2.5, 5, 7.5, 10, 30, 60 seconds of their arrival, each over the bound before; the last is of those over '
    '60.';
comment on column oncely.stats.login is
    'The database''s user whose process wrote it; null for a minute of all processes.';

-- The same of relays, by where they bring things.
create table oncely.relay_stats (
    at timestamptz not null,
    target text collate "C" not null,
    process uuid not null,
    relayed bigint not null,
    failed bigint not null,
    parked bigint not null,
    records bigint not null,
    oldest_age double precision not null,
    login text,
    constraint relay_stats_pkey primary key (at, target, process),
    constraint relay_stats_target check (target in ('redis', 'rabbitmq')),
    -- NaN is more than any number.
    constraint relay_stats_counts check (
        least(relayed, failed, parked, records) >= 0 and greatest(relayed, failed, parked, records) <= 1000000000000
        and oldest_age between 0 and 10000000000
    ),
    constraint relay_stats_times check (
        at >= '1970-01-01 00:00:00+00' and at <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.relay_stats is
    'What relays did, in spans of ten seconds by process, and after two hours in minutes of all processes together; '
    'kept for seven days.';
comment on column oncely.relay_stats.at is 'Beginning of the span.';
comment on column oncely.relay_stats.target is 'Where to: redis (mirror records) or rabbitmq (events).';
comment on column oncely.relay_stats.process is 'oncely.processes.id; all zeros for a minute of all processes.';
comment on column oncely.relay_stats.relayed is 'Records or events that arrived.';
comment on column oncely.relay_stats.failed is 'Tries that failed.';
comment on column oncely.relay_stats.parked is 'Events that were parked.';
comment on column oncely.relay_stats.records is
    'Records or due events that waited at the end of the span, counted up to 10,000. All relays see the same ones.';
comment on column oncely.relay_stats.oldest_age is
    'Seconds that the oldest of them had waited; 0 where none did. All relays see the same one.';
comment on column oncely.relay_stats.login is
    'The database''s user whose process wrote it; null for a minute of all processes.';

create function oncely.check_stats(process uuid, at timestamptz) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select from oncely.processes as p where p.id = check_stats.process and p.login = session_user
    ) then
        raise exception using errcode = 'ONC16', message = 'oncely: this is no process of this user';
    end if;
    if check_stats.at is distinct from date_bin(interval '10 seconds', check_stats.at, timestamptz 'epoch')
        or check_stats.at not between clock_timestamp() - interval '1 hour' and clock_timestamp() + interval '1 minute'
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: stats are written for the beginning of a span of ten seconds, within the last hour';
    end if;
end
$$;
comment on function oncely.check_stats is
    'Is this a process of the session''s user, and a span that it may write? Internal.';
revoke execute on function oncely.check_stats from public;

-- Written again for the same span, the last word counts: a process whose reply was lost says it once more. A user that
-- comes and goes under new ids writes of a hundred processes in a span, as many as it may have.
create function oncely.record_stats(process uuid, at timestamptz, consumers jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform oncely.check_stats(record_stats.process, record_stats.at);
    if (
        select count(distinct s.process)
        from oncely.stats as s
        where s.at = record_stats.at and s.login = session_user and s.process <> record_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.stats as s (
        at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks,
        outages, durations, login
    )
    select record_stats.at, c.consumer, record_stats.process, c.delivered, c.completed, c.refused, c.duplicates,
        c.retried, c.postponed, c.dead_lettered, c.fallbacks, c.outages, c.durations, session_user
    from jsonb_to_recordset(record_stats.consumers) as c (
        consumer text, delivered bigint, completed bigint, refused bigint, duplicates bigint, retried bigint,
        postponed bigint, dead_lettered bigint, fallbacks bigint, outages bigint, durations bigint[]
    )
    -- A name that no worker has registered would be a row that nobody asked for.
    where exists (select from oncely.consumers as k where k.consumer = c.consumer)
    on conflict (at, consumer, process) do update
    set delivered = excluded.delivered, completed = excluded.completed, refused = excluded.refused,
        duplicates = excluded.duplicates, retried = excluded.retried, postponed = excluded.postponed,
        dead_lettered = excluded.dead_lettered, fallbacks = excluded.fallbacks, outages = excluded.outages,
        durations = excluded.durations;
end
$$;
comment on function oncely.record_stats is
    'Writes what the consumers of a process did in a span of ten seconds; again for the same span, the last word '
    'counts.';
revoke execute on function oncely.record_stats from public;

create function oncely.record_relay_stats(process uuid, at timestamptz, targets jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
    perform oncely.check_stats(record_relay_stats.process, record_relay_stats.at);
    if (
        select count(distinct s.process)
        from oncely.relay_stats as s
        where s.at = record_relay_stats.at and s.login = session_user and s.process <> record_relay_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.relay_stats as s (at, target, process, relayed, failed, parked, records, oldest_age, login)
    select record_relay_stats.at, t.target, record_relay_stats.process, t.relayed, t.failed, t.parked, t.records,
        t.oldest_age, session_user
    from jsonb_to_recordset(record_relay_stats.targets) as t (
        target text, relayed bigint, failed bigint, parked bigint, records bigint, oldest_age double precision
    )
    on conflict (at, target, process) do update
    set relayed = excluded.relayed, failed = excluded.failed, parked = excluded.parked, records = excluded.records,
        oldest_age = excluded.oldest_age;
end
$$;
comment on function oncely.record_relay_stats is
    'Writes what a relay did in a span of ten seconds; again for the same span, the last word counts.';
revoke execute on function oncely.record_relay_stats from public;

-- No process may write into a span that is older than an hour (check_stats), so a minute that is made here is complete.
-- What is written is held within the bounds: one span that says too much must not end this for all. What somebody's
-- transaction holds is left for the next time.
create function oncely.roll_up_stats() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    nobody constant uuid := '00000000-0000-0000-0000-000000000000';
    -- As in the constraints. Sums are numeric, which has room for all.
    most constant bigint := 1000000000000;
    before_time constant timestamptz :=
        date_bin(interval '1 minute', clock_timestamp() - interval '2 hours', timestamptz 'epoch');
    rolled bigint;
begin
    with old as (
        select o.at, o.consumer, o.process
        from oncely.stats as o
        where o.at < before_time and o.process <> nobody
        for update skip locked
    ),
    spans as (
        delete from oncely.stats as s
        using old
        where s.at = old.at and s.consumer = old.consumer and s.process = old.process
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
    -- Another relay has made it, and spans came in between: added.
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

-- Apart from the roll-up, so that whatever ends that one keeps nothing here.
create function oncely.prune_stats() returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    with consumers as (
        delete from oncely.stats as s
        where (s.at, s.consumer, s.process) in (
            select o.at, o.consumer, o.process
            from oncely.stats as o
            where o.at < clock_timestamp() - interval '7 days'
            for update skip locked
        )
        returning 1
    ),
    relays as (
        delete from oncely.relay_stats as s
        where (s.at, s.target, s.process) in (
            select o.at, o.target, o.process
            from oncely.relay_stats as o
            where o.at < clock_timestamp() - interval '7 days'
            for update skip locked
        )
        returning 1
    )
    select (select count(*) from consumers) + (select count(*) from relays)
$$;
comment on function oncely.prune_stats is
    'Removes spans and minutes that are older than seven days; returns how many.';
revoke execute on function oncely.prune_stats from public;
