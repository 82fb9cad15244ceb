set local search_path = pg_catalog, pg_temp;

drop function oncely.park(text, text, text, text);
