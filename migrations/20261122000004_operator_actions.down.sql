set local search_path = pg_catalog, pg_temp;

drop function oncely.record_action;
drop table oncely.operator_actions;
