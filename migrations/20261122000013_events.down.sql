set local search_path = pg_catalog, pg_temp;

drop table oncely.ordering_keys;
drop table oncely.events;
