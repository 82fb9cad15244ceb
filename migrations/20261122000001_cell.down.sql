set local search_path = pg_catalog, pg_temp;

-- The schema stays: it holds the list of applied migrations.
drop function oncely.bucket;
drop function oncely.epoch;
drop table oncely.cell;
comment on schema oncely is null;
