-- An interval of years and months less days compares as another time than it is when it is added: PostgreSQL compares
-- months of 30 days. So each interval that a caller gives becomes one without them, and no other is stored.
create or replace function oncely.checked_time(name text, given interval, least_time interval, most interval)
returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    seconds constant numeric := extract(epoch from given);
    exact interval;
begin
    if (seconds between extract(epoch from least_time) and extract(epoch from most)) is not true then
        raise exception using errcode = 'ONC11',
            message = format('oncely: %s is not between %s and %s', name, least_time, most);
    end if;
    exact := make_interval(secs => seconds::double precision);
    -- A lease of 24 hours is no calendar day, which may have 25.
    return case when seconds > 86400 then justify_hours(exact) else exact end;
end
$$;
comment on function oncely.checked_time is
    'Returns a time without months; refuses one that is out of bounds, or null (SQLSTATE ONC11).';
