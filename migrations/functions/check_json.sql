create or replace function oncely.check_json(name text, value jsonb, advice text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if octet_length(value::text) > oncely.json_limit(value) then
        raise exception using errcode = 'ONC15', hint = advice,
            message = format('oncely: the %s has %s bytes; 65536 are allowed', name, octet_length(value::text));
    end if;
end
$$;
comment on function oncely.check_json is 'Refuses a response or a result that is too large (SQLSTATE ONC15).';
