-- The functions that came after the first ones were pinned.
set local search_path = pg_catalog, pg_temp;

do $$
declare
    one regprocedure;
begin
    for one in
        select p.oid
        from pg_proc as p
        where p.pronamespace = 'oncely'::regnamespace and p.prosqlbody is null
          and not coalesce('search_path=pg_catalog, pg_temp' = any (p.proconfig), false)
    loop
        execute format('alter function %s set search_path = pg_catalog, pg_temp', one);
    end loop;
end
$$;
