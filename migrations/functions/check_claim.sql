create or replace function oncely.check_claim(max_crashes integer) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    perform oncely.check_isolation();
    if max_crashes is null or max_crashes not between 1 and 10000 then
        raise exception using errcode = 'ONC11', message = 'oncely: max_crashes is 1 to 10000';
    end if;
end
$$;
comment on function oncely.check_claim is 'Refuses what no lease can be granted with (SQLSTATE ONC10, ONC11).';
