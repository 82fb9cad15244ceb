set local search_path = pg_catalog, pg_temp;

drop function oncely.free_keys;
drop function oncely.has_done;
drop function oncely.reopen_steps;
drop function oncely.letter_memories;
drop function oncely.delete_keys;
drop function oncely.may_be_forgotten;
drop view oncely.dead_letter_groups;
drop function oncely.set_tenant_retention;
drop function oncely.limit_events;
drop function oncely.limit_tenant;
drop function oncely.collect_dead_letters;
drop function oncely.count_letters;
drop table oncely.letter_growth;
drop table oncely.letter_usage;
drop table oncely.tenant_limits;
drop table oncely.dead_letters;
