create or replace function oncely.stored_header(value jsonb, depth integer default 0) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    -- The same depth as in workers (crates/amqp/src/stored.rs).
    if depth > 40 then
        raise exception using errcode = 'program_limit_exceeded', message = 'oncely: headers nest too deep';
    end if;
    return case jsonb_typeof(value)
        when 'object' then jsonb_build_object('F', oncely.stored_headers(value, depth + 1))
        when 'array' then (
            select coalesce(jsonb_agg(oncely.stored_header(e.value, depth + 1) order by e.place), '[]')
            from jsonb_array_elements(value) with ordinality as e (value, place)
        )
        when 'number' then case
            when scale((value #>> '{}')::numeric) = 0
                and (value #>> '{}')::numeric between -9223372036854775808 and 9223372036854775807 then value
            else jsonb_build_object('d', value #>> '{}')
        end
        else value
    end;
end
$$;
comment on function oncely.stored_header is
    'A header''s value in the form of dead_letters.headers, from plain JSON: an object is a table, a number that is no '
    'integer of 64 bits a double.';
revoke execute on function oncely.stored_header from public;
