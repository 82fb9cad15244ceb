set local search_path = pg_catalog, pg_temp;

drop function oncely.drop_audit_partitions;
drop function oncely.drop_audit_partition;
drop function oncely.erase_trail;
drop function oncely.seal_audit;
drop function oncely.append_seal;
drop function oncely.seal_hash;
drop function oncely.audit_digest;
drop table oncely.audit_seals;

drop function oncely.accept_clock;
drop function oncely.observe_clock;
drop table oncely.maintenance;

drop function oncely.record_decision;
drop function oncely.oldest_audit;
drop function oncely.count_audit;
drop function oncely.list_audit;
drop function oncely.summarize_audit;
drop function oncely.make_audit_partitions;
drop function oncely.make_audit_partition;
drop view oncely.processed_keys;
-- Drops its partitions, too.
drop table oncely.audit;
