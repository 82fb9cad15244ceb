set local search_path = pg_catalog, pg_temp;

drop function oncely.resume_consumer;
drop function oncely.pause_consumer;
drop table oncely.controls;
