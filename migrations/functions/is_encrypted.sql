-- Recognises a value that a worker encrypted: an object of its own (crates/core/src/encryption/sealer.rs). A handler's
-- value that looks like it, or like the wrapper oncely_plain, is stored in that wrapper.
create or replace function oncely.is_encrypted(value jsonb) returns boolean
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return coalesce(
        jsonb_typeof(value -> 'oncely_encrypted' -> 'key') = 'string'
        and jsonb_typeof(value -> 'oncely_encrypted' -> 'value') = 'string'
        and value = jsonb_build_object('oncely_encrypted', jsonb_build_object(
            'key', value -> 'oncely_encrypted' -> 'key', 'value', value -> 'oncely_encrypted' -> 'value'
        )), false
    );
end
$$;
comment on function oncely.is_encrypted is 'Has a worker encrypted this value?';
