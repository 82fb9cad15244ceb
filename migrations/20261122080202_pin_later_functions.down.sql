-- Nothing is taken back: the functions go with their own migrations.
set local search_path = pg_catalog, pg_temp;
