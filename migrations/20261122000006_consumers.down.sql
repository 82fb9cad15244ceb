set local search_path = pg_catalog, pg_temp;

drop function oncely.set_retention;
drop function oncely.register_mirror_ttl;
drop function oncely.register_consumer;
drop function oncely.tenant_retention;
drop function oncely.effective_retention;
drop function oncely.forgotten_before;
drop table oncely.turns;
drop table oncely.consumers;
