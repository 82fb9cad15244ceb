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
