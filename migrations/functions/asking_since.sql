-- Keeps the time in a session setting.
create or replace function oncely.asking_since() returns timestamptz
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    since text := current_setting('oncely.asking_since', true);
begin
    if coalesce(since, '') = '' then
        since := extract(epoch from clock_timestamp())::text;
        perform set_config('oncely.asking_since', since, false);
    end if;
    return to_timestamp(since::double precision);
end
$$;
comment on function oncely.asking_since is 'Since when this session claims by leases.';
revoke execute on function oncely.asking_since from public;
