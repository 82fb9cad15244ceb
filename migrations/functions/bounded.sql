-- What comes in by SQL is bounded where it comes in, and once more by the tables: a time in the year 270,000 is fine
-- for PostgreSQL, and ends a program that reads it. Each table with a time has a constraint <table>_times; short, since
-- PostgreSQL reads a constraint's text anew with each statement that writes (greatest and least leave nulls out).
create or replace function oncely.bounded(at timestamptz) returns timestamptz
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
