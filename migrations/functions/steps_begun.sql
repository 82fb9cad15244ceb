create or replace function oncely.steps_begun(steps jsonb) returns text
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select string_agg(s.name, ', ' order by s.name)
        from jsonb_each(steps) as s (name, step)
        where s.step ->> 'state' = 'started'
    );
end
$$;
comment on function oncely.steps_begun is 'Names of the steps that began and may have happened; null where none did.';
