create or replace function oncely.plain_json(value jsonb) returns jsonb
language plpgsql immutable parallel safe
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        when oncely.is_encrypted(value) then null
        when value = jsonb_build_object('oncely_plain', value -> 'oncely_plain') then value -> 'oncely_plain'
        else value
    end;
end
$$;
comment on function oncely.plain_json is
    'A stored response as a handler returned it; null where a worker has encrypted it.';
