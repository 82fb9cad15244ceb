set local search_path = pg_catalog, pg_temp;

drop function oncely.refuse_step;
drop function oncely.checkpoint;
drop function oncely.begin_step;
drop function oncely.step_key;
drop function oncely.may_repeat;
drop function oncely.check_steps;
