-- Deletes events for logins without a right to the table: with a right to delete, a login may lock all of it.
create or replace function oncely.delete_events(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.events as e
    using unnest(tenants, ids) as d (tenant, id)
    -- A parked event waits for an operator.
    where oncely.in_group(e.tenant, tenants) and e.tenant = d.tenant and e.id = d.id and e.state = 'pending';
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_events is
    'Deletes events that have arrived; none that is parked. Returns how many there were. For relays.';
revoke execute on function oncely.delete_events from public;
