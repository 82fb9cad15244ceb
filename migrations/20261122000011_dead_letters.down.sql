set local search_path = pg_catalog, pg_temp;

drop function oncely.free_keys;
drop function oncely.has_done;
drop function oncely.reopen_steps;
drop function oncely.letter_memories;
drop view oncely.dead_letter_groups;
drop table oncely.dead_letters;
