-- A lease of now, or the one that there is, but no longer than the run may take.
create or replace function oncely.lease_end(ends timestamptz, lease interval, run_ends_at timestamptz)
returns timestamptz
language sql volatile
set search_path = pg_catalog, pg_temp
as 'select least(greatest(ends, clock_timestamp() + lease), run_ends_at)';
comment on function oncely.lease_end is 'When a lease ends that is renewed now.';
