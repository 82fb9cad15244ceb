create or replace function oncely.is_held(held oncely.idempotency_keys, token bigint) returns boolean
language sql immutable
set search_path = pg_catalog, pg_temp
as 'select coalesce(held.owner is not null and held.fencing_token = token, false)';
comment on function oncely.is_held is 'Is this the lease that holds the key?';
