create or replace function oncely.reject(message text, detail text default null) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    raise exception using errcode = 'ONC01', message = message, detail = coalesce(detail, '');
end
$$;
comment on function oncely.reject is
    'For handlers: this message can never succeed. Rolls back its effect and dead-letters it as handler_rejected '
    '(SQLSTATE ONC01).';
