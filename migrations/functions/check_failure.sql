create or replace function oncely.check_failure(reason text, reasons text[], error_code text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if error_code !~ '^[0-9A-Z]{5}$' and error_code <> '' then
        raise exception using errcode = 'ONC11', message = 'oncely: error_code is no SQLSTATE',
            hint = 'Five digits and capitals, or null.';
    end if;
    if reason <> all (reasons) then
        raise exception using errcode = 'ONC11',
            message = format('oncely: reason is none of %s', array_to_string(reasons, ', ')),
            hint = 'Null where error_code decides, or the message may run again until max_attempts.';
    end if;
end
$$;
comment on function oncely.check_failure is 'Refuses a failure of no known kind (SQLSTATE ONC11).';
