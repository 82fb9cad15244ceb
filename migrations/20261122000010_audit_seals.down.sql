set local search_path = pg_catalog, pg_temp;

drop function oncely.drop_audit_partitions;
drop function oncely.drop_audit_partition;
drop function oncely.erase_trail;
drop function oncely.seal_audit;
drop function oncely.append_seal;
drop function oncely.seal_hash;
drop function oncely.audit_digest;
drop table oncely.audit_seals;
