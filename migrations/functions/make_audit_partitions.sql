create or replace function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz)
returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    week timestamptz := date_trunc('week', from_time at time zone 'UTC') at time zone 'UTC';
    partition text;
begin
    if (isfinite(from_time) and isfinite(until_time)) is not true or until_time > from_time + interval '3660 days' then
        raise exception using errcode = 'ONC11',
            message = format('oncely: %s to %s are more than 3660 days of partitions', from_time, until_time);
    end if;
    while week < until_time loop
        partition := oncely.make_audit_partition(week);
        if partition is not null then
            return next partition;
        end if;
        week := week + interval '168 hours';
    end loop;
end
$$;
comment on function oncely.make_audit_partitions is
    'Makes the weekly partitions that touch the span and do not exist, in one transaction; returns their names.';
revoke execute on function oncely.make_audit_partitions from public;
