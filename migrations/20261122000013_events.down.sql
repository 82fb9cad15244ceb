set local search_path = pg_catalog, pg_temp;

drop function oncely.list_events;
drop function oncely.collect_ordering_keys;
drop function oncely.change_events;
drop function oncely.delete_events;
drop table oncely.ordering_keys;
drop table oncely.events;
