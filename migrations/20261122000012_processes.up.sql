set local search_path = pg_catalog, pg_temp;

-- Holds the state of live processes: an operator at night asks the database, not the log of each process. One small row
-- a process, written anew every few seconds by a connection of its own.
create table oncely.processes (
    id uuid not null,
    kind text collate "C" not null,
    name text not null,
    version text collate "C" not null,
    host text not null,
    pid integer not null,
    config_digest text collate "C" not null,
    state text collate "C" not null,
    reason text,
    login text not null,
    started_at timestamptz not null,
    last_seen_at timestamptz not null,
    has_succeeded boolean not null default false,
    consumers jsonb not null,
    constraint processes_pkey primary key (id),
    -- This id means all processes in oncely.stats.
    constraint processes_id check (id <> '00000000-0000-0000-0000-000000000000'),
    constraint processes_kind check (kind in ('worker', 'relay', 'gateway')),
    constraint processes_state check (state in ('starting', 'ready', 'unready', 'stopping')),
    -- A login that may write heartbeats can't fill the disk with them.
    constraint processes_size check (
        octet_length(name) <= 255 and octet_length(version) <= 64 and octet_length(host) <= 255
        and octet_length(config_digest) <= 64 and octet_length(reason) <= 1000
        and octet_length(consumers::text) <= 262144
    ),
    -- Bounds a process's counts, which readers add up.
    constraint processes_numbers check (
        not jsonb_path_exists(consumers, 'strict $.** ? (@ > 1000000000000000 || @ < -1000000000000000)')
    ),
    constraint processes_times check (
        least(started_at, last_seen_at) >= '1970-01-01 00:00:00+00'
        and greatest(started_at, last_seen_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.processes is
    'Heartbeats of workers, relays and gateways: a process writes its row every five seconds, and removes it when it '
    'ends in peace. Rows that are silent for an hour are removed by a relay.';
comment on column oncely.processes.id is 'Random (version 7), made anew by each process.';
comment on column oncely.processes.kind is 'worker, relay or gateway.';
comment on column oncely.processes.name is 'As in the audit trail (worker.name).';
comment on column oncely.processes.version is 'Version of the program.';
comment on column oncely.processes.host is 'Where it runs, in its own words.';
comment on column oncely.processes.pid is 'Its number there.';
comment on column oncely.processes.config_digest is
    'Names the configuration that it was started with: two processes with different ones have different files.';
comment on column oncely.processes.state is
    'starting; ready; unready, with the reason; stopping. What /readyz of the process says.';
comment on column oncely.processes.reason is 'Why it is not ready.';
comment on column oncely.processes.login is 'The database''s user that it really logged in as.';
comment on column oncely.processes.started_at is 'When it was first seen.';
comment on column oncely.processes.last_seen_at is
    'When it was seen last. More than 12 seconds ago: it is dead, stopped, or cut off.';
comment on column oncely.processes.has_succeeded is
    'It has taken the place of one that ended without a word (killed and started again), whose row it removed.';
comment on column oncely.processes.consumers is
    'Of each consumer of a worker: counters since its start, last completion, unacknowledged deliveries by queue, '
    'the last failure, and since when and why it is stalled.';

-- from functions/is_kind.sql
create or replace function oncely.is_kind(kind text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- Checks the user's privileges: that works if roles have other names, and for a user that sets its role.
    select coalesce(
        case
            -- A gateway claims keys as a worker does.
            when is_kind.kind in ('worker', 'gateway') then
                has_function_privilege(session_user, 'oncely.record_stats(uuid, timestamptz, jsonb)', 'execute')
                or pg_has_role(session_user, to_regrole('oncely_worker')::oid, 'member')
            when is_kind.kind = 'relay' then
                has_function_privilege(session_user, 'oncely.record_relay_stats(uuid, timestamptz, jsonb)', 'execute')
                or pg_has_role(session_user, to_regrole('oncely_relay')::oid, 'member')
        end,
        false
    )
$$;
comment on function oncely.is_kind is 'May the session''s user be a worker, a relay or a gateway? Internal.';
revoke execute on function oncely.is_kind from public;

-- from functions/succeed.sql
-- Removes the row of a process that was killed and restarted: its successor has the same host and the same name.
-- Removes one for one: where two were killed and one came back, the other is still missed.
create or replace function oncely.succeed(id uuid, at timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    killed uuid;
begin
    select o.id into killed
    from oncely.processes as n
    join oncely.processes as o on o.login = n.login and o.kind = n.kind and o.host = n.host and o.name = n.name
    where n.id = succeed.id and not n.has_succeeded and n.started_at > o.last_seen_at
      and o.last_seen_at < succeed.at - interval '12 seconds'
      and jsonb_path_query_array(o.consumers, '$[*].consumer')
          = jsonb_path_query_array(n.consumers, '$[*].consumer')
    order by o.last_seen_at desc
    limit 1
    for update of o skip locked;
    if found then
        delete from oncely.processes as p where p.id = killed;
        update oncely.processes as p set has_succeeded = true where p.id = succeed.id;
    end if;
end
$$;
comment on function oncely.succeed is
    'Removes the row of a silent process whose place another has taken. For oncely.beat.';
revoke execute on function oncely.succeed from public;

-- from functions/beat.sql
create or replace function oncely.beat(
    id uuid, kind text, name text, version text, host text, pid integer, config_digest text, state text, reason text,
    consumers jsonb
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    silent uuid;
    at timestamptz := clock_timestamp();
begin
    -- Leaves room for hundreds of consumers; a reader of all processes reads all of it.
    if octet_length(consumers::text) > 262144 then
        raise exception using errcode = 'ONC15',
            message = 'oncely: a heartbeat may have 256 kB at most';
    end if;
    update oncely.processes as p
    set last_seen_at = at, state = beat.state, reason = beat.reason, consumers = beat.consumers
    where p.id = beat.id and p.login = session_login;
    if found then
        perform oncely.succeed(beat.id, at);
        return;
    end if;
    -- A worker registered as a relay would hide that no relay is alive.
    if not oncely.is_kind(beat.kind) then
        raise exception using errcode = 'ONC16', message = format('oncely: this user is no %s', beat.kind);
    end if;
    -- Removes a process that ended without a report, to make room.
    if (select count(*) from oncely.processes as p where p.login = session_login) >= 100 then
        select o.id into silent
        from oncely.processes as o
        where o.login = session_login and o.last_seen_at < at - interval '1 minute'
        order by o.last_seen_at
        limit 1
        for update skip locked;
        if not found then
            raise exception using errcode = '53400', message = 'oncely: this user has a hundred processes already';
        end if;
        delete from oncely.processes as p where p.id = silent;
    end if;
    -- Another user's id violates the primary key.
    insert into oncely.processes (
        id, kind, name, version, host, pid, config_digest, state, reason, login, started_at, last_seen_at, consumers
    )
    values (
        beat.id, beat.kind, beat.name, beat.version, beat.host, beat.pid, beat.config_digest, beat.state, beat.reason,
        session_login, at, at, beat.consumers
    );
end
$$;
comment on function oncely.beat is
    'Writes the heartbeat of a process, as a worker, a relay or a gateway as far as its user may be one. A row belongs '
    'to the user that made it; a user has a hundred.';
revoke execute on function oncely.beat from public;

-- from functions/leave.sql
create or replace function oncely.leave(id uuid) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    session_login constant text := session_user;
begin
    delete from oncely.processes as p where p.id = leave.id and p.login = session_login;
end
$$;
comment on function oncely.leave is 'Removes the row of a process that ends in peace.';
revoke execute on function oncely.leave from public;

-- from functions/bury_processes.sql
create or replace function oncely.bury_processes(before_time timestamptz) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    -- Keeps a row seen within the last minute, whatever time the caller passes.
    before timestamptz := least(bury_processes.before_time, clock_timestamp() - interval '1 minute');
    silent uuid[];
    gone bigint;
begin
    silent := array(
        select o.id
        from oncely.processes as o
        where o.last_seen_at < before
        -- A row locked by its own user stays until the next call.
        for update skip locked
    );
    delete from oncely.processes as p where p.id = any (silent);
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.bury_processes is
    'Removes the rows of processes that were last seen before a time; returns how many.';
revoke execute on function oncely.bury_processes from public;

-- from functions/forget_processes.sql
-- Removes processes by hand: a host that is gone for good has no successor.
create or replace function oncely.forget_processes(host text, name text, pid integer, os_user text, reason text)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    -- A living process writes its row every few seconds.
    silent_since timestamptz := clock_timestamp() - interval '12 seconds';
    gone bigint;
begin
    delete from oncely.processes as p
    where p.last_seen_at < silent_since
      and (forget_processes.host is null or p.host = forget_processes.host)
      and (forget_processes.name is null or p.name = forget_processes.name)
      and (forget_processes.pid is null or p.pid = forget_processes.pid);
    get diagnostics gone = row_count;
    if gone > 0 then
        perform oncely.record_action(
            '', 'forget processes',
            jsonb_strip_nulls(jsonb_build_object(
                'host', forget_processes.host, 'name', forget_processes.name, 'pid', forget_processes.pid
            )), gone, forget_processes.reason, forget_processes.os_user
        );
    end if;
    return gone;
end
$$;
comment on function oncely.forget_processes is
    'Removes the rows of silent processes, where null matches any; returns how many. One that lives after all writes '
    'its row again. Recorded in operator_actions. For operators.';
revoke execute on function oncely.forget_processes from public;

-- end of functions

-- Holds amounts and durations of work: screens read them here, and never count keys or the trail, which hold millions
-- of rows. Each process adds up for itself and writes one row a consumer every ten seconds, outside of every
-- transaction that does work. After two hours the rows of all processes become one a minute.
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
    -- More than any process counts, and so little that sums fit.
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

-- Holds the same for relays, by target.
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
    -- NaN is greater than any number.
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

-- from functions/check_stats.sql
create or replace function oncely.check_stats(process uuid, at timestamptz) returns void
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

-- from functions/record_stats.sql
-- Records a span's stats. A repeated call replaces the row: a process repeats it after a lost reply. A user that comes
-- and goes under new ids writes for a hundred processes in a span, as many as it may have.
create or replace function oncely.record_stats(process uuid, at timestamptz, consumers jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_stats(record_stats.process, record_stats.at);
    if (
        select count(distinct s.process)
        from oncely.stats as s
        where s.at = record_stats.at and s.login = session_login and s.process <> record_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.stats as s (
        at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks,
        outages, durations, login
    )
    select record_stats.at, c.consumer, record_stats.process, c.delivered, c.completed, c.refused, c.duplicates,
        c.retried, c.postponed, c.dead_lettered, c.fallbacks, c.outages, c.durations, session_login
    from jsonb_to_recordset(record_stats.consumers) as c (
        consumer text, delivered bigint, completed bigint, refused bigint, duplicates bigint, retried bigint,
        postponed bigint, dead_lettered bigint, fallbacks bigint, outages bigint, durations bigint[]
    )
    -- A name that no worker has registered would add an unwanted row.
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

-- from functions/record_relay_stats.sql
create or replace function oncely.record_relay_stats(process uuid, at timestamptz, targets jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_stats(record_relay_stats.process, record_relay_stats.at);
    if (
        select count(distinct s.process)
        from oncely.relay_stats as s
        where s.at = record_relay_stats.at and s.login = session_login and s.process <> record_relay_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.relay_stats as s (at, target, process, relayed, failed, parked, records, oldest_age, login)
    select record_relay_stats.at, t.target, record_relay_stats.process, t.relayed, t.failed, t.parked, t.records,
        t.oldest_age, session_login
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

-- from functions/roll_up_stats.sql
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

-- from functions/prune_stats.sql
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

-- end of functions

-- Holds operators' commands to consumers. Every worker reads them every two seconds; while the database does not
-- answer, the last ones read hold.
create table oncely.controls (
    consumer text collate "C" not null,
    paused_at timestamptz not null,
    paused_until timestamptz,
    paused_by text not null,
    reason text not null,
    constraint controls_pkey primary key (consumer),
    constraint controls_consumer check (octet_length(consumer) between 1 and 255),
    constraint controls_reason check (octet_length(reason) between 1 and 10000),
    constraint controls_times check (
        least(paused_at, paused_until) >= '1970-01-01 00:00:00+00'
        and greatest(paused_at, paused_until) <= '9999-12-31 00:00:00+00'
        and paused_until > paused_at
    )
);
comment on table oncely.controls is 'Consumers that are paused (oncely.pause_consumer).';
comment on column oncely.controls.consumer is 'The consumer.';
comment on column oncely.controls.paused_at is 'When it was paused.';
comment on column oncely.controls.paused_until is 'When it goes on by itself; null: when it is resumed.';
comment on column oncely.controls.paused_by is
    'Who: the database''s session user, and in brackets what the client said of the user of the operating system.';
comment on column oncely.controls.reason is 'Why, in the person''s words.';

-- from functions/pause_consumer.sql
create or replace function oncely.pause_consumer(consumer text, paused_until timestamptz, reason text, os_user text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Below each client's own limits: a session that waits for another transaction gets an error.
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
begin
    -- A misspelt name would pause no consumer, and look as if it had.
    if not exists (select from oncely.consumers as k where k.consumer = pause_consumer.consumer) then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', pause_consumer.consumer);
    end if;
    if pause_consumer.paused_until <= at or pause_consumer.paused_until > at + interval '3650 days' then
        raise exception using errcode = 'ONC11', message = 'oncely: a pause ends in the future, within ten years';
    end if;
    if coalesce(octet_length(pause_consumer.reason), 0) not between 1 and 10000 then
        raise exception using errcode = 'ONC11', message = 'oncely: a pause has a reason, of 10000 bytes at most';
    end if;
    insert into oncely.controls as c (consumer, paused_at, paused_until, paused_by, reason)
    values (
        pause_consumer.consumer, at, pause_consumer.paused_until,
        concat(session_login, ' (', left(pause_consumer.os_user, 255), ')'), pause_consumer.reason
    )
    on conflict (consumer) do update
    set paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_by = excluded.paused_by,
        reason = excluded.reason;
    -- Drops ranges that no retention reaches back to: a claim's own may be longer than the consumer's.
    update oncely.consumers as k
    set paused = k.paused * tstzmultirange(tstzrange(
            oncely.forgotten_before(at, interval '3650 days', k.paused), at
        )) + tstzmultirange(tstzrange(at, pause_consumer.paused_until))
    where k.consumer = pause_consumer.consumer;
    perform oncely.record_action(
        '', 'pause', jsonb_build_object('consumer', pause_consumer.consumer, 'until', pause_consumer.paused_until), 1,
        pause_consumer.reason, pause_consumer.os_user
    );
end
$$;
comment on function oncely.pause_consumer is
    'Pauses a consumer until a time, or without one until it is resumed; a second call changes reason and end. '
    'Recorded in operator_actions. Its workers return what has not begun and stay unsubscribed; its keys get no older.';
revoke execute on function oncely.pause_consumer from public;

-- from functions/resume_consumer.sql
create or replace function oncely.resume_consumer(consumer text, reason text, os_user text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    found_until timestamptz;
begin
    delete from oncely.controls as c
    where c.consumer = resume_consumer.consumer
    returning coalesce(c.paused_until, 'infinity') into found_until;
    update oncely.consumers as k
    set paused = k.paused * tstzmultirange(tstzrange(null, at))
    where k.consumer = resume_consumer.consumer and upper(k.paused) is distinct from least(upper(k.paused), at);
    if found_until is null or found_until <= at then
        return false;
    end if;
    perform oncely.record_action(
        '', 'resume', jsonb_build_object('consumer', resume_consumer.consumer), 1, resume_consumer.reason,
        resume_consumer.os_user
    );
    return true;
end
$$;
comment on function oncely.resume_consumer is
    'Ends a consumer''s pause; recorded in operator_actions. Returns whether it was paused.';
revoke execute on function oncely.resume_consumer from public;

-- end of functions
