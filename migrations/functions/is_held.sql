create or replace function oncely.is_held(held oncely.idempotency_keys, token bigint) returns boolean
language sql immutable
begin atomic
    select coalesce(held.owner is not null and held.fencing_token = token, false);
end;
comment on function oncely.is_held is 'Is this the lease that holds the key?';
