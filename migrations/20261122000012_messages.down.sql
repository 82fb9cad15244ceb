set local search_path = pg_catalog, pg_temp;

drop function oncely.refuse;
drop function oncely.reject;
-- Refused while functions of users take them.
drop type oncely.result;
drop type oncely.message;
