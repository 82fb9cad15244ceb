create or replace function oncely.lease_protocol_version() returns integer
language sql immutable parallel safe
begin atomic
    select 1;
end;
comment on function oncely.lease_protocol_version is
    'Version of oncely.claim_lease and of the functions that take its token. Within a version parameters with defaults '
    'and columns are only added.';
