create or replace function oncely.release_lease(tenant text, consumer text, key text, token bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
begin
    held := oncely.hold_lease(release_lease.tenant, release_lease.consumer, release_lease.key, release_lease.token);
    if oncely.is_held(held, release_lease.token) then
        update oncely.idempotency_keys as i
        set owner = null, run_ends_at = null, not_before = clock_timestamp()
        where i.tenant = release_lease.tenant and i.consumer = release_lease.consumer and i.key = release_lease.key;
        return true;
    end if;
    return coalesce(held.status = 'IN_PROGRESS' and held.fencing_token = release_lease.token, false);
end
$$;
comment on function oncely.release_lease is
    'Gives a held key back, and counts nothing: the next copy runs at once. For a program that stops. False where the '
    'lease is lost. Lease protocol version 1.';
revoke execute on function oncely.release_lease from public;
