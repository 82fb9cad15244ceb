-- Returns a handler's quoted name, found by name and argument type; raises undefined_function (42883) without one.
create or replace function oncely.handler_name(handler text, batch boolean) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select format('%I.%I', n.nspname, p.proname)
        from pg_proc as p
        join pg_namespace as n on n.oid = p.pronamespace
        where p.oid = (handler || case when batch then '(oncely.message[])' else '(oncely.message)' end)::regprocedure
    );
end
$$;
comment on function oncely.handler_name is
    'Resolves a configured handler to a quoted name, so that no identifier is ever pasted.';
