set local search_path = pg_catalog, pg_temp;

-- Names this database and its history, so that a mirror entry, a backup or a wrong URL can't be taken for another's.
--
-- Sets the search_path of all functions: names are looked up along the session's path, and where types don't fit
-- exactly an object of any schema on it may win over pg_catalog's: a role that may create in one of them (in public,
-- before PostgreSQL 15) could have its functions run with the rights of Oncely's callers. So functions and migrations
-- see pg_catalog alone; a handler sees the path of its role and database, and the text that calls it qualifies every
-- name.
create schema if not exists oncely;
comment on schema oncely is 'Oncely: messages that take effect once. Idempotency keys, outbox and audit.';

create table oncely.cell (
    only_row boolean not null default true,
    name text collate "C" not null default 'main',
    history_id uuid not null default gen_random_uuid(),
    audit_floor interval not null default interval '30 days',
    tenant_events bigint not null default 10000000,
    tenant_event_bytes bigint not null default 17179869184,
    mirror_ttl interval not null default interval '0',
    mirror_ttl_until timestamptz,
    mirror_ttl_next interval,
    constraint cell_pkey primary key (only_row),
    constraint cell_has_one_row check (only_row),
    constraint cell_name_length check (octet_length(name) between 1 and 255),
    constraint cell_audit_floor check (audit_floor between interval '1 day' and interval '3650 days'),
    constraint cell_tenant_events check (least(tenant_events, tenant_event_bytes) >= 0),
    constraint cell_mirror_ttl check (
        mirror_ttl between interval '0' and interval '3650 days'
        and mirror_ttl_next between interval '0' and interval '3650 days'
    ),
    constraint cell_has_no_months check (
        (extract(year from mirror_ttl), extract(month from mirror_ttl)) = (0, 0)
        and (extract(year from mirror_ttl_next), extract(month from mirror_ttl_next)) = (0, 0)
        and (extract(year from audit_floor), extract(month from audit_floor)) = (0, 0)
    ),
    constraint cell_times check (
        mirror_ttl_until between '1970-01-01 00:00:00+00' and '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.cell is
    'One row: which cell this database is. A worker refuses a database whose name is not the configured one.';
comment on column oncely.cell.only_row is 'Always true: keeps the table at one row.';
comment on column oncely.cell.name is 'Name of the cell, [cell] name in oncely.toml.';
comment on column oncely.cell.history_id is
    'Random; part of oncely.epoch(). A new one makes every mirror entry of before invisible: set it after a '
    'restore.';
comment on column oncely.cell.audit_floor is
    'No younger part of the trail is dropped, whatever a process asks for. Only the owner of the schema can lower '
    'it: update oncely.cell set audit_floor = …';
comment on column oncely.cell.tenant_events is
    'How many events of one tenant may wait before oncely.emit refuses a client''s: logins that oncely.rights lists. '
    'oncely.tenant_limits has other numbers for single tenants. Only the owner of the schema can change it: update '
    'oncely.cell set tenant_events = …';
comment on column oncely.cell.tenant_event_bytes is 'How many bytes of their payloads and headers, likewise.';
comment on column oncely.cell.mirror_ttl is
    'mirror.ttl, the longest of the relays: a mirror entry may live for so long, and no retention is shortened below '
    'it. Zero without a mirror.';
comment on column oncely.cell.mirror_ttl_until is
    'A relay has a shorter mirror.ttl: until when entries of the longer one may live. Then mirror_ttl_next replaces '
    'it, unless a relay has the longer one still.';
comment on column oncely.cell.mirror_ttl_next is 'The longest of the shorter ones that relays have meanwhile.';
insert into oncely.cell default values;

-- from functions/epoch.sql
-- Combines four values: databases of one server share the system identifier, a promoted standby continues it on another
-- timeline, and a restored copy may share all three (with the oid), but gets a new history id.
create or replace function oncely.epoch() returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select s.system_identifier::text
            || '-' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
            || '-' || d.oid::text
            || '-' || c.history_id::text
        from pg_control_system() as s
        cross join oncely.cell as c
        join pg_database as d on d.datname = current_database()
    );
end
$$;
comment on function oncely.epoch is
    'The epoch that a row belongs to: system identifier, timeline, database oid and history id. Fails on a '
    'standby.';

-- end of functions

-- Holds locks for the work of one process at a time. They are rows, not advisory locks: any login may take those, for
-- as long as it likes. A row of pid 0 is locked for a transaction; a session that takes a lock for longer adds a row,
-- which counts as long as the session exists. No role may write here: only functions do.
create table oncely.locks (
    name text collate "C" not null,
    pid integer not null,
    backend_start timestamptz not null,
    since timestamptz not null,
    constraint locks_pkey primary key (name, pid),
    constraint locks_name check (name in ('audit_partitions', 'collection', 'count_letters', 'requeue', 'requeueing')),
    constraint locks_times check (
        least(backend_start, since) >= '1970-01-01 00:00:00+00'
        and greatest(backend_start, since) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.locks is 'Locks of the maintenance and of requeues, and the sessions that hold them.';
comment on column oncely.locks.name is 'What is locked.';
comment on column oncely.locks.pid is 'The process of the session that holds it; 0 in the row that transactions lock.';
comment on column oncely.locks.backend_start is 'When that process began, as far as it is shown.';
comment on column oncely.locks.since is
    'Since when the session holds it; in the row of pid 0, when it was released last.';
insert into oncely.locks (name, pid, backend_start, since)
select n, 0, '1970-01-01 00:00:00+00', clock_timestamp()
from unnest(array['audit_partitions', 'collection', 'count_letters', 'requeue', 'requeueing']) as n;

-- from functions/take_lock.sql
create or replace function oncely.take_lock(name text, shared boolean) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if shared then
        perform from oncely.locks as l where l.name = take_lock.name and l.pid = 0 for share;
    else
        perform from oncely.locks as l where l.name = take_lock.name and l.pid = 0 for update;
    end if;
    if not found then
        raise exception using errcode = 'ONC11', message = format('oncely: there is no lock %s', name);
    end if;
end
$$;
comment on function oncely.take_lock is 'Takes a lock until the transaction ends; waits for it.';
revoke execute on function oncely.take_lock from public;

-- from functions/try_session_lock.sql
create or replace function oncely.try_session_lock(name text, shared boolean) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    own integer := pg_backend_pid();
    at timestamptz := clock_timestamp();
    holder record;
    is_held boolean := false;
begin
    perform oncely.take_lock(name, false);
    -- A closed session holds nothing; nor does one with a pid that another session has got since.
    for holder in
        select l.pid, l.backend_start, l.since
        from oncely.locks as l
        where l.name = try_session_lock.name and l.pid <> 0
    loop
        if holder.pid = own or holder.since < at - interval '1 day'
            or not oncely.is_at_work(holder.pid, holder.backend_start)
        then
            delete from oncely.locks as l where l.name = try_session_lock.name and l.pid = holder.pid;
        else
            is_held := true;
        end if;
    end loop;
    if is_held and not shared then
        return false;
    end if;
    insert into oncely.locks (name, pid, backend_start, since)
    select try_session_lock.name, a.pid, coalesce(a.backend_start, '1970-01-01 00:00:00+00'), at
    from pg_stat_get_activity(own) as a;
    return true;
end
$$;
comment on function oncely.try_session_lock is
    'Takes a lock until it is released or the session ends, a day at the most; false where another session holds it. A '
    'shared one never keeps others out, and is seen (oncely.is_session_locked).';
revoke execute on function oncely.try_session_lock from public;

-- from functions/release_session_lock.sql
create or replace function oncely.release_session_lock(name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    own integer := pg_backend_pid();
    at timestamptz := clock_timestamp();
begin
    delete from oncely.locks as l where l.name = release_session_lock.name and l.pid = own;
    update oncely.locks as l set since = at where l.name = release_session_lock.name and l.pid = 0;
end
$$;
comment on function oncely.release_session_lock is 'Releases a lock of the session.';
revoke execute on function oncely.release_session_lock from public;

-- from functions/is_session_locked.sql
create or replace function oncely.is_session_locked(name text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (
        select from oncely.locks as l
        where l.name = is_session_locked.name and l.pid <> 0 and oncely.is_at_work(l.pid, l.backend_start)
    );
end
$$;
comment on function oncely.is_session_locked is 'Does a session hold this lock?';
revoke execute on function oncely.is_session_locked from public;

-- from functions/bucket.sql
-- Maps a tenant to a bucket, for ever: first two bytes of SHA-256, modulo 1,024. Cells will own buckets, not tenants.
create or replace function oncely.bucket(tenant text) returns integer
language sql immutable strict parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select (
        get_byte(sha256(convert_to(tenant, 'UTF8')), 0) * 256 + get_byte(sha256(convert_to(tenant, 'UTF8')), 1)
    ) % 1024
$$;
comment on function oncely.bucket is 'Bucket 0..1023 of a tenant; never changes.';

-- end of functions

-- Defines values that several tables and functions share: times, ids, arguments, bodies, errors.

-- from functions/bounded.sql
-- Limits a time to a range that every program can hold. SQL input is bounded on arrival, and again by the tables: the
-- year 270,000 is valid in PostgreSQL, and breaks a program that reads it. Each table with a time has a constraint
-- <table>_times; short, since each writing statement parses a constraint's text anew (greatest and least ignore nulls).
create or replace function oncely.bounded(at timestamptz) returns timestamptz
language sql immutable parallel safe
begin atomic
    select case
        when at > '9999-12-31 00:00:00+00' then '9999-12-31 00:00:00+00'
        when at < '1970-01-01 00:00:00+00' then '1970-01-01 00:00:00+00'
        else at
    end;
end;
comment on function oncely.bounded is
    'A time as every program can hold it: between 1970 and 9999. For rows that came past the tables'' constraints.';

-- from functions/uuid_v7.sql
-- Makes a UUID (PostgreSQL 18 has uuidv7()). Time first, so that new rows lie together. Parsed once, when created:
-- needs no search_path of its own, which would cost more than the rest, once for each event.
create or replace function oncely.uuid_v7(at timestamptz) returns uuid
language sql volatile parallel safe
begin atomic
    select encode(
        set_bit(set_bit(
            overlay(
                uuid_send(gen_random_uuid())
                placing substring(int8send(floor(extract(epoch from at) * 1000)::bigint) from 3) from 1 for 6
            ),
            52, 1), 53, 1),
        'hex')::uuid;
end;
comment on function oncely.uuid_v7 is 'A random uuid of version 7 for a time.';
revoke execute on function oncely.uuid_v7 from public;

-- from functions/check_argument.sql
create or replace function oncely.check_argument(name text, value text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if value is null or octet_length(value) not between 1 and 255 then
        raise exception using errcode = 'ONC11',
            message = format(
                'oncely: %s %s', name,
                case when value is null then 'is null' else format('has %s bytes', octet_length(value)) end
            ),
            hint = 'It has 1 to 255 bytes.';
    end if;
    -- A claimant with such a name would treat observed messages as processed.
    if name = 'consumer' and value like '%.observe' then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a name that ends with .observe is that of a consumer that only observes';
    end if;
end
$$;
comment on function oncely.check_argument is 'Refuses a name that can''t be one (SQLSTATE ONC11).';

-- from functions/checked_time.sql
-- Converts a caller's interval to seconds. A month of an interval is compared as 30 days and added by the calendar, and
-- a day is added in the session's time zone, where it may have 23 or 25 hours. In seconds, a lease of 24 hours ends
-- after 24. Settings are stored in days, for display, and are read in seconds.
create or replace function oncely.checked_time(name text, given interval, least_time interval, most interval)
returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    seconds constant numeric := extract(epoch from given);
begin
    if (seconds between extract(epoch from least_time) and extract(epoch from most)) is not true then
        raise exception using errcode = 'ONC11',
            message = format('oncely: %s is not between %s and %s', name, least_time, most);
    end if;
    return make_interval(secs => seconds::double precision);
end
$$;
comment on function oncely.checked_time is
    'Returns a time in seconds; refuses one that is out of bounds, or null (SQLSTATE ONC11).';

-- from functions/try_jsonb.sql
-- Converts a body to jsonb; null where PostgreSQL can't hold it: NUL escapes, lone surrogates, huge numbers, nesting.
create or replace function oncely.try_jsonb(body bytea) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception
    when data_exception or program_limit_exceeded then
        return null;
end
$$;
comment on function oncely.try_jsonb is 'The body as jsonb, or null where it is not JSON that PostgreSQL can hold.';

-- from functions/worker_name.sql
create or replace function oncely.worker_name(worker text) returns text
language sql stable
begin atomic
    select coalesce(nullif(worker, ''), nullif(current_setting('application_name'), ''), session_user);
end;
comment on function oncely.worker_name is
    'What the caller calls itself, for the audit trail: the name given, else application_name, else the user. Who '
    'it was stands in login.';

-- from functions/error_class.sql
-- Classifies SQLSTATEs like the worker (class_of in crates/postgres/src/error.rs); a test compares all. 2200H (an
-- exhausted sequence) strikes every message alike, so it belongs to the environment, as does an object that another
-- transaction holds. A client that reports a refusal (ONC07) to oncely.fail wants the message given up; one that takes
-- it for an answer completes its claim with it. ONC17 is reserved: not in this cell (see oncely.claim).
create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
begin atomic
    select case
        when code in ('ONC01', 'ONC06', 'ONC07') then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H', '55006', '55P03', 'ONC16', 'ONC17', 'ONC22')
            or left(code, 2) in ('08', '57', '53', '58', '40', '42', '3F', '3D', '28', 'XX', 'F0', 'HV')
            then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
    end;
end;
comment on function oncely.error_class is
    'What a SQLSTATE says of a failure: transient, environment (not the message''s fault), or the reason to give '
    'the message up.';

-- from functions/is_encrypted.sql
-- Recognises a value that a worker encrypted: an object of its own (crates/core/src/encryption/sealer.rs). A handler's
-- value that looks like it, or like the wrapper oncely_plain, is stored in that wrapper.
create or replace function oncely.is_encrypted(value jsonb) returns boolean
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(
        jsonb_typeof(value -> 'oncely_encrypted' -> 'key') = 'string'
        and jsonb_typeof(value -> 'oncely_encrypted' -> 'value') = 'string'
        and value = jsonb_build_object('oncely_encrypted', jsonb_build_object(
            'key', value -> 'oncely_encrypted' -> 'key', 'value', value -> 'oncely_encrypted' -> 'value'
        )), false
    );
end
$$;
comment on function oncely.is_encrypted is 'Has a worker encrypted this value?';

-- from functions/plain_json.sql
create or replace function oncely.plain_json(value jsonb) returns jsonb
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when oncely.is_encrypted(value) then null
        when value = jsonb_build_object('oncely_plain', value -> 'oncely_plain') then value -> 'oncely_plain'
        else value
    end;
end
$$;
comment on function oncely.plain_json is
    'A stored response as a handler returned it; null where a worker has encrypted it.';

-- from functions/json_limit.sql
-- Allows 64 KiB of plain text; encrypted: in base64, with a nonce, a tag, and a key's name.
create or replace function oncely.json_limit(value jsonb) returns integer
language sql immutable parallel safe
begin atomic
    select case when oncely.is_encrypted(value) then 65536 / 3 * 4 + 1024 else 65536 end;
end;
comment on function oncely.json_limit is 'Most bytes of this value as a response, or as the result of a step.';

-- from functions/check_json.sql
create or replace function oncely.check_json(name text, value jsonb, advice text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(value::text) > oncely.json_limit(value) then
        raise exception using errcode = 'ONC15', hint = advice,
            message = format('oncely: the %s has %s bytes; 65536 are allowed', name, octet_length(value::text));
    end if;
end
$$;
comment on function oncely.check_json is 'Refuses a response or a result that is too large (SQLSTATE ONC15).';

-- from functions/in_group.sql
-- Names the tenants of a statement on many rows. For PostgreSQL, which finds each row by its whole key, the condition
-- vanishes when the statement is planned. An engine that spreads tables over nodes learns from it which part of a table
-- is meant (oncely.tenant_groups).
create or replace function oncely.in_group(tenant text, tenants text[]) returns boolean
language sql immutable
begin atomic
    select true;
end;
comment on function oncely.in_group is
    'True for a tenant of these. The caller compares the tenant all the same: it says which part of a table it means.';
revoke execute on function oncely.in_group from public;

-- from functions/tenant_groups.sql
-- Divides tenants for statements that lock rows. An engine that spreads tables over nodes has other texts of this
-- function, of oncely.in_group and of oncely.units; a group is then the tenants of one part of the tables.
create or replace function oncely.tenant_groups(tenants text[]) returns setof text[]
language sql immutable
begin atomic
    select tenants;
end;
comment on function oncely.tenant_groups is
    'Groups of these tenants: one statement may lock rows of one group. PostgreSQL has all in one.';
revoke execute on function oncely.tenant_groups from public;

-- from functions/tenant_nodes.sql
-- Finds the nodes that keep the rows of tenants, on an engine that spreads tables over nodes (oncely.tenant_groups).
-- A node's number stays when its address changes.
create or replace function oncely.tenant_nodes(
    tenants text[], out tenant text, out node integer, out host text, out port integer
) returns setof record
language sql stable
begin atomic
    select ''::text, 0, ''::text, 0 limit 0;
end;
comment on function oncely.tenant_nodes is
    'The node that keeps each tenant''s rows, on an engine that spreads tables over nodes. PostgreSQL has none.';
revoke execute on function oncely.tenant_nodes from public;

-- from functions/units.sql
-- Lists the tables that a relay or a collection walks along, and locks rows of. On an engine that spreads tables over
-- nodes (oncely.tenant_groups) a unit is one part of each table with tenants, of those that this server keeps.
create or replace function oncely.units(out unit text, out tables jsonb) returns setof record
language sql stable
begin atomic
    select '', '{}'::jsonb;
end;
comment on function oncely.units is
    'Units of work of this server: the tables of each, by the names of the tables of the schema that they are parts '
    'of. PostgreSQL has one, with the tables themselves.';
revoke execute on function oncely.units from public;

-- from functions/unit_table.sql
create or replace function oncely.unit_table(unit text, name text) returns regclass
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    of_unit regclass;
begin
    select coalesce(u.tables ->> unit_table.name, 'oncely.' || unit_table.name)::regclass into of_unit
    from oncely.units() as u
    where u.unit = unit_table.unit;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: this server has no unit %s', quote_literal(unit));
    end if;
    return of_unit;
end
$$;
comment on function oncely.unit_table is 'The table that a unit has for a table of the schema (oncely.units).';
revoke execute on function oncely.unit_table from public;

-- end of functions
