drop table oncely.ordering_keys;
drop table oncely.events;
