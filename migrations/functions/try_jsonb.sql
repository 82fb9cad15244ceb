-- Converts a body to jsonb; null where PostgreSQL can't hold it: NUL escapes, lone surrogates, huge numbers, nesting.
create or replace function oncely.try_jsonb(body bytea) returns jsonb
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return convert_from(body, 'UTF8')::jsonb;
exception
    when data_exception or program_limit_exceeded then
        return null;
end
$$;
comment on function oncely.try_jsonb is 'The body as jsonb, or null where it is not JSON that PostgreSQL can hold.';
