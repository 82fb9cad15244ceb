set local search_path = pg_catalog, pg_temp;

drop function oncely.unit_table;
drop function oncely.units;
drop function oncely.tenant_nodes;
drop function oncely.tenant_groups;
drop function oncely.in_group;
drop function oncely.check_json;
drop function oncely.json_limit;
drop function oncely.plain_json;
drop function oncely.is_encrypted;
drop function oncely.error_class;
drop function oncely.worker_name;
drop function oncely.try_jsonb;
drop function oncely.checked_time;
drop function oncely.check_argument;
drop function oncely.uuid_v7;
drop function oncely.bounded;

-- Keeps the schema, which holds the list of migrations.
drop function oncely.bucket;
drop function oncely.epoch;
drop function oncely.is_session_locked;
drop function oncely.release_session_lock;
drop function oncely.try_session_lock;
drop function oncely.take_lock;
drop table oncely.locks;
drop table oncely.cell;
comment on schema oncely is null;
