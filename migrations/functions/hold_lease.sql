-- Two runs at once of one key: the second waits here until the first one's statement is over, then reads the row anew.
create or replace function oncely.hold_lease(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    held oncely.idempotency_keys;
begin
    perform oncely.check_isolation();
    perform oncely.check_argument('tenant', hold_lease.tenant), oncely.check_argument('consumer', hold_lease.consumer),
        oncely.check_argument('key', hold_lease.key);
    perform oncely.check_right('consume', hold_lease.consumer, hold_lease.tenant);
    -- Numbers only grow: whose number is not there has no lease, and locks nothing that others wait for.
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = hold_lease.tenant and i.consumer = hold_lease.consumer and i.key = hold_lease.key;
    if held.fencing_token is distinct from hold_lease.token then
        return held;
    end if;
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = hold_lease.tenant and i.consumer = hold_lease.consumer and i.key = hold_lease.key
    for update;
    if held.owner is not null and held.fencing_token = hold_lease.token
        and held.claimed_in = pg_current_xact_id()::text::bigint
    then
        raise exception using errcode = 'ONC19',
            message = 'oncely: the lease was granted in this very transaction',
            hint = 'COMMIT the claim first: until then nobody else sees it, and a rollback would take it back.';
    end if;
    return held;
end
$$;
comment on function oncely.hold_lease is
    'Locks a key''s row for whoever says to hold it, and returns it as it is; SQLSTATE ONC19 where the claim is not '
    'committed yet.';
revoke execute on function oncely.hold_lease from public;
