set local search_path = pg_catalog, pg_temp;

create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
as $$
    select case
        when code = 'ONC01' then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code = '25006' or left(code, 2) in ('08', '57', '53', '58', '42', '3F', '3D', '28', 'XX', 'F0') then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
    end
$$;
alter table oncely.idempotency_keys drop column marked_backend_start, drop column marked_pid, drop column error_code, drop column not_before;
