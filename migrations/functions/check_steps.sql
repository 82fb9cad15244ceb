create or replace function oncely.check_steps(steps jsonb, is_new boolean) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if is_new and (select count(*) from jsonb_object_keys(steps)) >= 100 then
        raise exception using errcode = 'ONC15', message = 'oncely: the key has 100 steps, and may have no more';
    end if;
    -- Each step rewrites the row. Checked before a call, and never when its result is to be stored.
    if is_new and octet_length(steps::text) > 1048576 then
        raise exception using errcode = 'ONC15', message = 'oncely: the steps of the key have more than 1048576 bytes';
    end if;
end
$$;
comment on function oncely.check_steps is 'Refuses a step too many (SQLSTATE ONC15).';
