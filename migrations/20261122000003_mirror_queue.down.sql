set local search_path = pg_catalog, pg_temp;

drop function oncely.delete_mirrored;
drop table oncely.mirror_queue;
