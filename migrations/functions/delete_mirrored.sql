-- Deletes records for logins without a right to the table: with a right to delete, a login may lock all of it.
create or replace function oncely.delete_mirrored(tenants text[], ids uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    gone bigint;
begin
    delete from oncely.mirror_queue as q
    using unnest(tenants, ids) as d (tenant, id)
    where oncely.in_group(q.tenant, tenants) and q.tenant = d.tenant and q.id = d.id;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_mirrored is
    'Deletes records that the mirror has. Returns how many there were. For relays.';
revoke execute on function oncely.delete_mirrored from public;
