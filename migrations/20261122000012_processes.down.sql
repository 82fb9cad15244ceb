set local search_path = pg_catalog, pg_temp;

drop function oncely.resume_consumer;
drop function oncely.pause_consumer;
drop table oncely.controls;

drop function oncely.prune_stats;
drop function oncely.roll_up_stats;
drop function oncely.record_relay_stats;
drop function oncely.record_stats;
drop function oncely.check_stats;
drop table oncely.relay_stats;
drop table oncely.stats;

drop function oncely.forget_processes;
drop function oncely.bury_processes;
drop function oncely.leave;
drop function oncely.beat;
drop function oncely.succeed;
drop function oncely.is_kind;
drop table oncely.processes;
