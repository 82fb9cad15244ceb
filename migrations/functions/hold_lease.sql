-- Locks a key for a run: a second run at once waits for the end of the first one's statement, then rereads the row.
create or replace function oncely.hold_lease(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
begin
    perform oncely.check_isolation();
    perform oncely.check_argument('tenant', tenant), oncely.check_argument('consumer', consumer),
        oncely.check_argument('key', key);
    perform oncely.check_right('consume', consumer, tenant);
    -- Tokens only grow: a run with another token has no lease, and locks no row that others wait for.
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    if held.fencing_token is distinct from token then
        return held;
    end if;
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key
    for update;
    if held.owner is not null and held.fencing_token = token
        and held.claimed_in = pg_current_xact_id()::text::bigint
    then
        raise exception using errcode = 'ONC19',
            message = 'oncely: the lease was granted in this very transaction',
            hint = 'COMMIT the claim first: until then no other session sees it, and a rollback would take it back.';
    end if;
    return held;
end
$$;
comment on function oncely.hold_lease is
    'Locks a key''s row for a run that says to hold it, and returns it as it is; SQLSTATE ONC19 where the claim is not '
    'committed yet.';
revoke execute on function oncely.hold_lease from public;
