create or replace function oncely.check_lease_time(name text, given interval, least_time interval, most interval)
returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- In seconds: an interval of months less days may be longer than it looks.
    if (
        extract(epoch from given) between extract(epoch from least_time) and extract(epoch from most)
        and given between least_time and most and extract(year from given) between -200 and 200
    ) is not true then
        raise exception using errcode = 'ONC11',
            message = format('oncely: %s is not between %s and %s', name, least_time, most);
    end if;
end
$$;
comment on function oncely.check_lease_time is 'Refuses a time that is out of bounds (SQLSTATE ONC11).';
