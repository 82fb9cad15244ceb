-- Divides tenants for statements that lock rows. An engine that spreads tables over nodes has other texts of this
-- function, of oncely.in_group and of oncely.units; a group is then the tenants of one part of the tables.
create or replace function oncely.tenant_groups(tenants text[]) returns setof text[]
language sql immutable
begin atomic
    select tenants;
end;
comment on function oncely.tenant_groups is
    'Groups of these tenants: one statement may lock rows of one group. PostgreSQL has all in one.';
revoke execute on function oncely.tenant_groups from public;
