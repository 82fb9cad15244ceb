set local search_path = pg_catalog, pg_temp;

drop function oncely.list_retentions;
drop function oncely.find_key;
drop function oncely.list_keys;
drop function oncely.seed_keys;
drop function oncely.mirror_again;
drop function oncely.park;
drop function oncely.settle_claim;
