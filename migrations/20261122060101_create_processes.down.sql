set local search_path = pg_catalog, pg_temp;

drop function oncely.bury_processes(timestamptz);
drop function oncely.leave(uuid);
drop function oncely.beat(uuid, text, text, text, text, integer, jsonb);
drop table oncely.processes;
