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
