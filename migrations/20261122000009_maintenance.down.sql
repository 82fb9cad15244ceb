set local search_path = pg_catalog, pg_temp;

drop function oncely.accept_clock;
drop function oncely.observe_clock;
drop table oncely.maintenance;
