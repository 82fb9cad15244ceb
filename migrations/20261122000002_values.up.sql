set local search_path = pg_catalog, pg_temp;

-- Values that several tables and functions share: what is a time, an id, an argument, a body, an error.

-- What comes in by SQL is bounded where it comes in, and once more by the tables: a time in the year 270,000 is fine
-- for PostgreSQL, and ends a program that reads it. Each table with a time has a constraint <table>_times; short, since
-- PostgreSQL reads a constraint's text anew with each statement that writes (greatest and least leave nulls out).
create function oncely.bounded(at timestamptz) returns timestamptz
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when at > '9999-12-31 00:00:00+00' then '9999-12-31 00:00:00+00'
        when at < '1970-01-01 00:00:00+00' then '1970-01-01 00:00:00+00'
        else at
    end
$$;
comment on function oncely.bounded is
    'A time as every program can hold it: between 1970 and 9999. For rows that came past the tables'' constraints.';

-- PostgreSQL 18 brings its own uuidv7(). Time first, so that new rows lie together. Parsed now, once and for all: it
-- needs no search_path of its own, which would cost more than the rest, once for each event.
create function oncely.uuid_v7(at timestamptz) returns uuid
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

create function oncely.check_argument(name text, value text) returns void
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
    -- Whoever claimed under such a name would take what was observed for processed.
    if name = 'consumer' and value like '%.observe' then
        raise exception using errcode = 'ONC11',
            message = 'oncely: a name that ends with .observe is that of a consumer that only observes';
    end if;
end
$$;
comment on function oncely.check_argument is 'Refuses a name that can''t be one (SQLSTATE ONC11).';

-- A body as jsonb, or null where PostgreSQL can't hold it: NUL escapes, lone surrogates, huge numbers, deep nesting.
create function oncely.try_jsonb(body bytea) returns jsonb
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

create function oncely.worker_name(worker text) returns text
language sql stable
set search_path = pg_catalog, pg_temp
as $$ select coalesce(nullif(worker, ''), nullif(current_setting('application_name'), ''), session_user) $$;
comment on function oncely.worker_name is
    'What the caller calls itself, for the audit trail: the name given, else application_name, else the user. Who '
    'it was stands in login.';

-- As the worker reads SQLSTATEs (pg::class_of in src/pg/error.rs); a test goes through all of them with both. 2200H (an
-- exhausted sequence) strikes every message alike, so it is the environment's, and so is what another transaction
-- holds. A client that tells oncely.fail of a refusal (ONC07) wants the message given up; one that takes it for an
-- answer completes its claim with it. ONC17 is reserved: not in this cell (see oncely.claim).
create function oncely.error_class(code text) returns text
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when code in ('ONC01', 'ONC07') then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H', '55006', '55P03', 'ONC16', 'ONC17', 'ONC22')
            or left(code, 2) in ('08', '57', '53', '58', '40', '42', '3F', '3D', '28', 'XX', 'F0', 'HV')
            then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
    end
$$;
comment on function oncely.error_class is
    'What a SQLSTATE says of a failure: transient, environment (not the message''s fault), or the reason to give '
    'the message up.';

-- What a worker has encrypted stands in an object of its own (src/encryption/sealer.rs). What a handler returned that
-- looks so, or like this other object, stands in the other one.
create function oncely.is_encrypted(value jsonb) returns boolean
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select coalesce(
        jsonb_typeof(value -> 'oncely_encrypted' -> 'key') = 'string'
        and jsonb_typeof(value -> 'oncely_encrypted' -> 'value') = 'string'
        and value = jsonb_build_object('oncely_encrypted', jsonb_build_object(
            'key', value -> 'oncely_encrypted' -> 'key', 'value', value -> 'oncely_encrypted' -> 'value'
        )), false
    )
$$;
comment on function oncely.is_encrypted is 'Has a worker encrypted this value?';

create function oncely.plain_json(value jsonb) returns jsonb
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
    select case
        when oncely.is_encrypted(value) then null
        when value = jsonb_build_object('oncely_plain', value -> 'oncely_plain') then value -> 'oncely_plain'
        else value
    end
$$;
comment on function oncely.plain_json is
    'A stored response as a handler returned it; null where a worker has encrypted it.';

-- 64 KiB of plain text. In base64, with a nonce, a tag, and the name of a key.
create function oncely.json_limit(value jsonb) returns integer
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as 'select case when oncely.is_encrypted(value) then 65536 / 3 * 4 + 1024 else 65536 end';
comment on function oncely.json_limit is 'Most bytes of this value as a response, or as the result of a step.';
