create or replace function oncely.forget_secrets() returns bigint
language sql volatile security definer
set search_path = pg_catalog, pg_temp
as $$
    with gone as (
        delete from oncely.secrets as s
        using oncely.maintenance as u
        where s.accepted_until <= least(u.clock_seen_at, clock_timestamp())
        returning 1
    )
    select count(*) from gone
$$;
comment on function oncely.forget_secrets is
    'Deletes keys that are not accepted any more, by the clock as far as it is explained. Returns how many.';
revoke execute on function oncely.forget_secrets from public;
