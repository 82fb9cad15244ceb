create or replace function oncely.renew_lease(
    tenant text, consumer text, key text, token bigint, lease interval default interval '30 seconds'
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    ends timestamptz;
begin
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    held := oncely.hold_lease(tenant, consumer, key, token);
    -- After max_run no lease is renewed, though no run has taken the key over yet.
    if not oncely.is_held(held.owner, held.fencing_token, token) or held.run_ends_at <= clock_timestamp() then
        return null;
    end if;
    ends := oncely.lease_end(held.not_before, lease, held.run_ends_at);
    update oncely.idempotency_keys as i set not_before = ends
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    return ends - clock_timestamp();
end
$$;
comment on function oncely.renew_lease is
    'Makes the lease end later, but not later than max_run after the claim. Returns what is left of it; null where it '
    'is lost: stop. Lease protocol version 1.';
revoke execute on function oncely.renew_lease from public;
