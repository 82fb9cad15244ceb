set local search_path = pg_catalog, pg_temp;

drop function oncely.revoke_rights;
drop function oncely.grant_right;
drop function oncely.visible_tenants;
drop function oncely.check_right;
drop function oncely.has_right;
drop table oncely.rights;
