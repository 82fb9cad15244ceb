-- Returns a renewed lease's end: not before its present end, nor after the run's.
create or replace function oncely.lease_end(ends timestamptz, lease interval, run_ends_at timestamptz)
returns timestamptz
language sql volatile
begin atomic
    select least(greatest(ends, clock_timestamp() + lease), run_ends_at);
end;
comment on function oncely.lease_end is 'When a lease ends that is renewed now.';
