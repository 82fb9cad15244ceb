create or replace function oncely.forget_secrets() returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz;
    gone bigint;
begin
    select least(u.clock_seen_at, clock_timestamp()) into at from oncely.maintenance as u;
    delete from oncely.secrets as s where s.accepted_until <= at;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.forget_secrets is
    'Deletes keys that are not accepted any more, by the clock as far as it is explained. Returns how many.';
revoke execute on function oncely.forget_secrets from public;
