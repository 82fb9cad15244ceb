set local search_path = pg_catalog, pg_temp;

-- Rows of a week without a partition wait in the default one. While they were moved others came after them, and ATTACH refused: under
-- load a missing partition could never be made. So whoever writes waits for a moment. And one week is one transaction now: one that
-- can't be made keeps no other from being made, nor an old one from being dropped.
create function oncely.make_audit_partition(day timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Shorter than deadlock_timeout: who gives way where somebody waits for us is we.
set lock_timeout = '900ms'
as $$
declare
    week timestamp := date_trunc('week', day at time zone 'UTC');
    partition text := 'audit_' || to_char(week, 'YYYYMMDD');
    first timestamptz := week at time zone 'UTC';
    last timestamptz := (week + interval '7 days') at time zone 'UTC';
    move text := format(
        'with moved as (delete from oncely.audit_default where occurred_at >= $1 and occurred_at < $2 returning *) '
        'insert into oncely.%I select * from moved',
        partition
    );
    waited bigint;
begin
    -- Two relays at once: the second waits, then finds it made.
    perform pg_advisory_xact_lock(hashtextextended('oncely.audit_partitions', 0));
    if to_regclass(format('oncely.%I', partition)) is not null then
        return null;
    end if;
    execute format('create table oncely.%I (like oncely.audit including defaults including constraints)', partition);
    -- Most of what waits, however much it is, while others go on writing.
    execute move using first, last;
    get diagnostics waited = row_count;
    -- The rest while nobody writes. Writers wait at the parent, before they choose a partition: one that waited at the default
    -- partition would come too late, and fail. A week to come that nothing waits for is nobody's at the moment.
    if waited > 0 or first <= clock_timestamp() then
        lock table only oncely.audit in share row exclusive mode;
        lock table oncely.audit_default in access exclusive mode;
        execute move using first, last;
    end if;
    execute format('alter table oncely.audit attach partition oncely.%I for values from (%L) to (%L)', partition, first, last);
    execute format('comment on table oncely.%I is %L', partition, 'Audit rows of the week that begins on ' || week::date || ' (UTC).');
    return partition;
end
$$;
comment on function oncely.make_audit_partition(timestamptz) is 'Makes the weekly partition that a time belongs to; returns its name, or null where it is there. To be called in a transaction of its own.';

create or replace function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    week timestamptz := date_trunc('week', from_time at time zone 'UTC') at time zone 'UTC';
    partition text;
begin
    while week < until_time loop
        partition := oncely.make_audit_partition(week);
        if partition is not null then
            return next partition;
        end if;
        week := week + interval '168 hours';
    end loop;
end
$$;
alter function oncely.make_audit_partitions(timestamptz, timestamptz) reset lock_timeout;
comment on function oncely.make_audit_partitions(timestamptz, timestamptz) is 'Makes the weekly partitions that touch the span and do not exist, in one transaction; returns their names.';

revoke execute on function oncely.make_audit_partition(timestamptz) from public;

do $$
declare
    role text;
begin
    for role in select rolname from pg_roles where rolname in ('oncely_relay', 'oncely_operator') loop
        execute format('grant execute on function oncely.make_audit_partition(timestamptz) to %I', role);
    end loop;
end
$$;
