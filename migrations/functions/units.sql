-- Lists the tables that a relay or a collection walks along, and locks rows of. On an engine that spreads tables over
-- nodes (oncely.tenant_groups) a unit is one part of each table with tenants, of those that this server keeps.
create or replace function oncely.units(out unit text, out tables jsonb) returns setof record
language sql stable
begin atomic
    select '', '{}'::jsonb;
end;
comment on function oncely.units is
    'Units of work of this server: the tables of each, by the names of the tables of the schema that they are parts '
    'of. PostgreSQL has one, with the tables themselves.';
revoke execute on function oncely.units from public;
