create or replace function oncely.lease_protocol_version() returns integer
language sql immutable parallel safe
set search_path = pg_catalog, pg_temp
as 'select 1';
comment on function oncely.lease_protocol_version is
    'Version of oncely.claim_lease and of the functions that take its token. Within a version parameters with defaults '
    'and columns are only added.';
