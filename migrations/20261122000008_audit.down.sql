set local search_path = pg_catalog, pg_temp;

drop function oncely.oldest_audit;
drop function oncely.count_audit;
drop function oncely.list_audit;
drop function oncely.summarize_audit;
drop function oncely.make_audit_partitions;
drop function oncely.make_audit_partition;
drop view oncely.processed_keys;
-- With its partitions.
drop table oncely.audit;
