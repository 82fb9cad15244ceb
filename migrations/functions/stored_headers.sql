create or replace function oncely.stored_headers(headers jsonb, depth integer default 0) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
declare
    every jsonb;
begin
    select coalesce(jsonb_object_agg(h.name, oncely.stored_header(h.value, depth + 1)), '{}')
    into every
    from jsonb_each(headers) as h (name, value);
    if exists (select from jsonb_object_keys(headers) as k (name) where octet_length(k.name) > 255) then
        raise exception using errcode = 'program_limit_exceeded', message = 'oncely: a header''s name is too long';
    end if;
    return every;
end
$$;
comment on function oncely.stored_headers is 'Headers in the form of dead_letters.headers, from plain JSON.';
revoke execute on function oncely.stored_headers from public;
