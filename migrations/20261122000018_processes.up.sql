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
    has_succeeded boolean not null default false,
    consumers jsonb not null,
    constraint processes_pkey primary key (id),
    -- It names all processes together in oncely.stats.
    constraint processes_id check (id <> '00000000-0000-0000-0000-000000000000'),
    constraint processes_kind check (kind in ('worker', 'relay', 'gateway')),
    constraint processes_state check (state in ('starting', 'ready', 'unready', 'stopping')),
    -- Whoever may beat fills no disk with it.
    constraint processes_size check (
        octet_length(name) <= 255 and octet_length(version) <= 64 and octet_length(host) <= 255
        and octet_length(config_digest) <= 64 and octet_length(reason) <= 1000
        and octet_length(consumers::text) <= 262144
    ),
    -- Counts of a process, which others add up.
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

create function oncely.is_kind(kind text) returns boolean
language sql stable
set search_path = pg_catalog, pg_temp
as $$
    -- By what the user may do, so that it holds where the roles have other names, and for one that sets its role.
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

-- Killed and started again: the row of the one before is removed by the one that came after it, on the same host and
-- under the same name. One for one: where two were killed and one came back, the other is still missed.
create function oncely.succeed(id uuid, at timestamptz) returns void
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    with gone as (
        delete from oncely.processes as p
        where p.id = (
            select o.id
            from oncely.processes as n
            join oncely.processes as o on o.login = n.login and o.kind = n.kind and o.host = n.host and o.name = n.name
            where n.id = succeed.id and not n.has_succeeded and n.started_at > o.last_seen_at
              and o.last_seen_at < succeed.at - interval '12 seconds'
              and jsonb_path_query_array(o.consumers, '$[*].consumer')
                  = jsonb_path_query_array(n.consumers, '$[*].consumer')
            order by o.last_seen_at desc
            limit 1
            for update of o skip locked
        )
        returning 1
    )
    update oncely.processes as p
    set has_succeeded = true
    where p.id = succeed.id and exists (select from gone)
$$;
comment on function oncely.succeed is
    'Removes the row of a silent process whose place another has taken. For oncely.beat.';
revoke execute on function oncely.succeed from public;

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
    -- Hundreds of consumers have room; whoever looks at all processes reads all of it.
    if octet_length(consumers::text) > 262144 then
        raise exception using errcode = 'ONC15',
            message = 'oncely: a heartbeat may have 256 kB at most';
    end if;
    update oncely.processes as p
    set last_seen_at = at, state = beat.state, reason = beat.reason, consumers = beat.consumers
    where p.id = beat.id and p.login = session_user;
    if found then
        perform oncely.succeed(beat.id, at);
        return;
    end if;
    -- A worker that says it were a relay hides that none lives.
    if not oncely.is_kind(beat.kind) then
        raise exception using errcode = 'ONC16', message = format('oncely: this user is no %s', beat.kind);
    end if;
    -- Those that ended without a word make room.
    if (select count(*) from oncely.processes as p where p.login = session_user) >= 100 then
        delete from oncely.processes as p
        where p.id = (
            select o.id
            from oncely.processes as o
            where o.login = session_user and o.last_seen_at < at - interval '1 minute'
            order by o.last_seen_at
            limit 1
            for update skip locked
        );
        if not found then
            raise exception using errcode = '53400', message = 'oncely: this user has a hundred processes already';
        end if;
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
comment on function oncely.beat is
    'Writes the heartbeat of a process, as a worker, a relay or a gateway as far as its user may be one. A row belongs '
    'to the user that made it; a user has a hundred.';
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
        where p.id in (
            select o.id
            from oncely.processes as o
            -- Whoever asks: what is seen is not buried.
            where o.last_seen_at < least(bury_processes.before_time, clock_timestamp() - interval '1 minute')
            -- What its own user holds stays until the next time.
            for update skip locked
        )
        returning 1
    )
    select count(*) from gone
$$;
comment on function oncely.bury_processes is
    'Removes the rows of processes that were last seen before a time; returns how many.';
revoke execute on function oncely.bury_processes from public;

-- A host that is gone for good has no successor.
create function oncely.forget_processes(host text, name text, pid integer, os_user text, reason text) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    gone bigint;
begin
    delete from oncely.processes as p
    where p.last_seen_at < clock_timestamp() - interval '12 seconds'
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
