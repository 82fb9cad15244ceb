set local search_path = pg_catalog, pg_temp;

drop function oncely.prune_stats;
drop function oncely.roll_up_stats;
drop function oncely.record_relay_stats;
drop function oncely.record_stats;
drop function oncely.check_stats;
drop table oncely.relay_stats;
drop table oncely.stats;
