-- Returns the retention in effect: after a reduction, earlier mirror entries live on for a while, and their keys must,
-- too. (In PL/pgSQL, like the next ones: called for each key, and SQL functions with a path are planned each time.)
create or replace function oncely.effective_retention(
    at timestamptz, retention interval, former_retention interval, former_until timestamptz
) returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return greatest(retention, case when former_until > at then former_retention end);
end
$$;
comment on function oncely.effective_retention is
    'By which retention the garbage collection goes at a time: the former, longer one until the last mirror entry is '
    'over that may have been written under it.';
revoke execute on function oncely.effective_retention from public;
