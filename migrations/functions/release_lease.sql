create or replace function oncely.release_lease(tenant text, consumer text, key text, token bigint) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys := oncely.hold_lease(tenant, consumer, key, token);
    at timestamptz := clock_timestamp();
begin
    if oncely.is_held(held.owner, held.fencing_token, token) then
        update oncely.idempotency_keys as i
        set owner = null, run_ends_at = null, not_before = at
        where i.tenant = tenant and i.consumer = consumer and i.key = key;
        return true;
    end if;
    return coalesce(held.status = 'IN_PROGRESS' and held.fencing_token = token, false);
end
$$;
comment on function oncely.release_lease is
    'Gives a held key back, and counts nothing: the next copy runs at once. For a program that stops. False where the '
    'lease is lost. Lease protocol version 1.';
revoke execute on function oncely.release_lease from public;
