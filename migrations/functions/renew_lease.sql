create or replace function oncely.renew_lease(
    tenant text, consumer text, key text, token bigint, lease interval default interval '30 seconds'
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
    ends timestamptz;
begin
    perform oncely.check_lease_time('lease', renew_lease.lease, interval '1 second', interval '1 day');
    held := oncely.hold_lease(renew_lease.tenant, renew_lease.consumer, renew_lease.key, renew_lease.token);
    -- Past max_run nothing is renewed, though nobody has taken the key over yet.
    if not oncely.is_held(held, renew_lease.token) or held.run_ends_at <= clock_timestamp() then
        return null;
    end if;
    ends := oncely.lease_end(held.not_before, renew_lease.lease, held.run_ends_at);
    update oncely.idempotency_keys as i set not_before = ends
    where i.tenant = renew_lease.tenant and i.consumer = renew_lease.consumer and i.key = renew_lease.key;
    return ends - clock_timestamp();
end
$$;
comment on function oncely.renew_lease is
    'Makes the lease end later, but not later than max_run after the claim. Returns what is left of it; null where it '
    'is lost: stop. Lease protocol version 1.';
revoke execute on function oncely.renew_lease from public;
