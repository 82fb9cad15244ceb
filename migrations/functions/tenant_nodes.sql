-- Finds the nodes that keep the rows of tenants, on an engine that spreads tables over nodes (oncely.tenant_groups).
-- A node's number stays when its address changes.
create or replace function oncely.tenant_nodes(
    tenants text[], out tenant text, out node integer, out host text, out port integer
) returns setof record
language sql stable
begin atomic
    select ''::text, 0, ''::text, 0 limit 0;
end;
comment on function oncely.tenant_nodes is
    'The node that keeps each tenant''s rows, on an engine that spreads tables over nodes. PostgreSQL has none.';
revoke execute on function oncely.tenant_nodes from public;
