set local search_path = pg_catalog, pg_temp;

drop function oncely.forget_processes;
drop function oncely.bury_processes;
drop function oncely.leave;
drop function oncely.beat;
drop function oncely.succeed;
drop function oncely.is_kind;
drop table oncely.processes;
