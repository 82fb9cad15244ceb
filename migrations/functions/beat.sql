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
