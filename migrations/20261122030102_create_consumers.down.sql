set local search_path = pg_catalog, pg_temp;

drop function oncely.set_retention(text, interval, text, text);
drop function oncely.register_consumer(text, interval, interval, text, text, text);
drop table oncely.consumers;
