set local search_path = pg_catalog, pg_temp;

-- The schema stays: it holds the list of applied migrations.
drop function oncely.bucket;
drop function oncely.epoch;
drop function oncely.is_session_locked;
drop function oncely.release_session_lock;
drop function oncely.try_session_lock;
drop function oncely.take_lock;
drop table oncely.locks;
drop table oncely.cell;
comment on schema oncely is null;
