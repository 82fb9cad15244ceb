set local search_path = pg_catalog, pg_temp;

drop table oncely.mirror_queue;
