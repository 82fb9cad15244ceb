drop view oncely.dead_letters;
drop view oncely.processed_keys;
drop function oncely.drop_audit_partitions(timestamptz);
drop function oncely.make_audit_partitions(timestamptz, timestamptz);
drop table oncely.audit;
