-- Who deletes has functions, and no right to the tables: with one to delete a login may lock all of them.
create or replace function oncely.delete_events(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.events as e
    using unnest(tenants, ids) as d (tenant, id)
    -- What is parked waits for a person.
    where e.tenant = d.tenant and e.id = d.id and e.state = 'pending';
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_events is
    'Deletes events that have arrived; none that is parked. Returns how many there were. For relays.';
revoke execute on function oncely.delete_events from public;
