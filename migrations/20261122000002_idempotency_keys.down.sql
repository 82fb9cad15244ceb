set local search_path = pg_catalog, pg_temp;

drop function oncely.is_at_work;
drop function oncely.decide;
drop function oncely.same_payload;
drop function oncely.stored_fingerprint;
drop table oncely.idempotency_keys;
drop type oncely.key_status;
