create or replace function oncely.unit_table(unit text, name text) returns regclass
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    of_unit regclass;
begin
    select coalesce(u.tables ->> unit_table.name, 'oncely.' || unit_table.name)::regclass into of_unit
    from oncely.units() as u
    where u.unit = unit_table.unit;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: this server has no unit %s', quote_literal(unit));
    end if;
    return of_unit;
end
$$;
comment on function oncely.unit_table is 'The table that a unit has for a table of the schema (oncely.units).';
revoke execute on function oncely.unit_table from public;
