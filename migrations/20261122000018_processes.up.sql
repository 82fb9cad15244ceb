set local search_path = pg_catalog, pg_temp;

-- Who is alive, and how it fares: a person at night asks the database, not the log of each process. One small row a
-- process, written anew every few seconds by a connection of its own.
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
    consumers jsonb not null,
    constraint processes_pkey primary key (id),
    constraint processes_kind check (kind in ('worker', 'relay')),
    constraint processes_state check (state in ('starting', 'ready', 'unready', 'stopping')),
    -- Whoever may beat fills no disk with it.
    constraint processes_size check (
        octet_length(name) <= 255 and octet_length(version) <= 64 and octet_length(host) <= 255
        and octet_length(config_digest) <= 64 and octet_length(reason) <= 1000
        and octet_length(consumers::text) <= 1048576
    ),
    constraint processes_times check (
        least(started_at, last_seen_at) >= '1970-01-01 00:00:00+00'
        and greatest(started_at, last_seen_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.processes is
    'Heartbeats of workers and relays: a process writes its row every five seconds, and removes it when it ends in '
    'peace. Rows that are silent for an hour are removed by a relay.';
comment on column oncely.processes.id is 'Random (version 7), made anew by each process.';
comment on column oncely.processes.kind is 'worker or relay.';
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
comment on column oncely.processes.consumers is
    'Of each consumer of a worker: counters since its start, last completion, unacknowledged deliveries by queue, '
    'the last failure, and since when and why it is stalled.';

create function oncely.beat(
    id uuid, kind text, name text, version text, host text, pid integer, config_digest text, state text, reason text,
    consumers jsonb
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
begin
    -- Two thousand consumers have room; whoever looks at all processes reads all of it.
    if octet_length(consumers::text) > 1048576 then
        raise exception using errcode = 'ONC15',
            message = 'oncely: a heartbeat may have a mebibyte at most';
    end if;
    update oncely.processes as p
    set last_seen_at = at, state = beat.state, reason = beat.reason, consumers = beat.consumers
    where p.id = beat.id and p.login = session_user;
    if found then
        return;
    end if;
    if (select count(*) from oncely.processes as p where p.login = session_user) >= 1000 then
        raise exception using errcode = '53400', message = 'oncely: this user has a thousand processes already';
    end if;
    -- With another user's id: a violation of the primary key.
    insert into oncely.processes (
        id, kind, name, version, host, pid, config_digest, state, reason, login, started_at, last_seen_at, consumers
    )
    values (
        beat.id, beat.kind, beat.name, beat.version, beat.host, beat.pid, beat.config_digest, beat.state, beat.reason,
        session_user, at, at, beat.consumers
    );
end
$$;
comment on function oncely.beat is 'Writes the heartbeat of a process. A row belongs to the user that made it.';
revoke execute on function oncely.beat from public;

create function oncely.leave(id uuid) returns void
language sql security definer
set search_path = pg_catalog, pg_temp
as $$ delete from oncely.processes as p where p.id = leave.id and p.login = session_user $$;
comment on function oncely.leave is 'Removes the row of a process that ends in peace.';
revoke execute on function oncely.leave from public;

create function oncely.bury_processes(before_time timestamptz) returns bigint
language sql security definer
set search_path = pg_catalog, pg_temp
as $$
    with gone as (
        delete from oncely.processes as p
        -- Whoever asks: what is seen is not buried.
        where p.last_seen_at < least(bury_processes.before_time, clock_timestamp() - interval '1 minute')
        returning 1
    )
    select count(*) from gone
$$;
comment on function oncely.bury_processes is
    'Removes the rows of processes that were last seen before a time; returns how many.';
revoke execute on function oncely.bury_processes from public;
