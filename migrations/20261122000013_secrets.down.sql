set local search_path = pg_catalog, pg_temp;

drop function oncely.forget_secrets;
drop function oncely.rotate_secret;
drop function oncely.signing_keys;
drop function oncely.mirror_keys;
drop table oncely.secrets;
