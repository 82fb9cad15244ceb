create or replace function oncely.is_held(owner text, held_token bigint, token bigint) returns boolean
language sql immutable
begin atomic
    select coalesce(owner is not null and held_token = token, false);
end;
comment on function oncely.is_held is 'Is this the lease that holds the key?';
