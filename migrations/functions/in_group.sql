-- Names the tenants of a statement on many rows. For PostgreSQL, which finds each row by its whole key, the condition
-- vanishes when the statement is planned. An engine that spreads tables over nodes learns from it which part of a table
-- is meant (oncely.tenant_groups).
create or replace function oncely.in_group(tenant text, tenants text[]) returns boolean
language sql immutable
begin atomic
    select true;
end;
comment on function oncely.in_group is
    'True for a tenant of these. The caller compares the tenant all the same: it says which part of a table it means.';
revoke execute on function oncely.in_group from public;
