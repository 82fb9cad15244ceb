set local search_path = pg_catalog, pg_temp;

create or replace function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    week timestamp := date_trunc('week', from_time at time zone 'UTC');
    partition text;
    first timestamptz;
    last timestamptz;
begin
    -- Two relays at once: the second waits, then finds everything made.
    perform pg_advisory_xact_lock(hashtextextended('oncely.audit_partitions', 0));
    while week < until_time at time zone 'UTC' loop
        partition := 'audit_' || to_char(week, 'YYYYMMDD');
        first := week at time zone 'UTC';
        last := (week + interval '7 days') at time zone 'UTC';
        if to_regclass(format('oncely.%I', partition)) is null then
            execute format('create table oncely.%I (like oncely.audit including defaults including constraints)', partition);
            -- What came before its partition was made moves over; ATTACH would refuse otherwise.
            execute format(
                'with moved as (delete from oncely.audit_default where occurred_at >= $1 and occurred_at < $2 returning *) '
                'insert into oncely.%I select * from moved',
                partition
            ) using first, last;
            execute format('alter table oncely.audit attach partition oncely.%I for values from (%L) to (%L)', partition, first, last);
            execute format('comment on table oncely.%I is %L', partition, 'Audit rows of the week that begins on ' || week::date || ' (UTC).');
            return next partition;
        end if;
        week := week + interval '7 days';
    end loop;
end
$$;
comment on function oncely.make_audit_partitions(timestamptz, timestamptz) is 'Makes the weekly partitions that touch the span and do not exist; returns their names.';
drop function oncely.make_audit_partition(timestamptz);
