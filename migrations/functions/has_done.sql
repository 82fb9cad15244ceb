create or replace function oncely.has_done(steps jsonb) returns boolean
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return exists (select from jsonb_each(steps) as s (name, step) where s.step ->> 'state' = 'done');
end
$$;
comment on function oncely.has_done is 'Is any of these steps done?';
