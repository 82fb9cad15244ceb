set local search_path = pg_catalog, pg_temp;

drop function oncely.set_retention;
drop function oncely.register_consumer;
drop table oncely.consumers;
