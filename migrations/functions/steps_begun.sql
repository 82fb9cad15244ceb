create or replace function oncely.steps_begun(steps jsonb) returns text
language sql immutable
set search_path = pg_catalog, pg_temp
as $$
    select string_agg(s.name, ', ' order by s.name)
    from jsonb_each(steps) as s (name, step)
    where s.step ->> 'state' = 'started'
$$;
comment on function oncely.steps_begun is 'Names of the steps that began and may have happened; null where none did.';
