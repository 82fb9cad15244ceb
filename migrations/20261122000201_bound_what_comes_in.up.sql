set local search_path = pg_catalog, pg_temp;

-- What comes in by SQL is bounded where it comes in, and once more by the tables: a time in the year 270,000 is fine for PostgreSQL, and
-- ends a program that reads it. NOT VALID, because a row from before must not keep the migration from running: readers clamp those.
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
comment on function oncely.bounded(timestamptz) is 'A time as every program can hold it: between 1970 and 9999. For rows that came past the tables'' constraints.';

-- Here so that it is bounded, too.
alter table oncely.idempotency_keys add column if not exists not_before timestamptz;
comment on column oncely.idempotency_keys.not_before is 'IN_PROGRESS: no copy of the message runs before this time. Null: any may.';

-- Every time of every table (a partition's are its table's). Short, because PostgreSQL reads a constraint's text anew with each statement
-- that writes; greatest and least leave nulls out.
do $$
declare
    name text;
    times text;
begin
    for name, times in
        select c.relname, string_agg(format('%I', a.attname), ', ' order by a.attnum)
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and c.relname <> '_sqlx_migrations' and a.atttypid = 'timestamptz'::regtype
        group by c.relname
    loop
        execute format(
            'alter table oncely.%I add constraint %I '
            'check (least(%s) >= ''1970-01-01 00:00:00+00'' and greatest(%s) <= ''9999-12-31 00:00:00+00'') not valid',
            name, name || '_times', times, times
        );
    end loop;
end
$$;

alter table oncely.idempotency_keys
    -- One more is always a number; and which kind of fingerprint it is stands in its bytes.
    add constraint idempotency_keys_bounds check (
        least(attempts, crash_attempts) >= 0 and greatest(attempts, crash_attempts) <= 1000000
        and octet_length(fingerprint) between 1 and 64
    ) not valid;

alter table oncely.outbox
    drop constraint outbox_identity,
    add constraint outbox_identity check (
        (kind = 'identity') = (consumer is not null) and (kind = 'identity') = (key is not null)
        and (kind = 'mirror') = (tags is not null)
        and octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
        and octet_length(fingerprint) between 1 and 64
    ) not valid;
