-- Allows 64 KiB of plain text; encrypted: in base64, with a nonce, a tag, and a key's name.
create or replace function oncely.json_limit(value jsonb) returns integer
language sql immutable parallel safe
begin atomic
    select case when oncely.is_encrypted(value) then 65536 / 3 * 4 + 1024 else 65536 end;
end;
comment on function oncely.json_limit is 'Most bytes of this value as a response, or as the result of a step.';
