set local search_path = pg_catalog, pg_temp;

create or replace function oncely.drop_audit_partitions(before_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    partition text;
begin
    perform pg_advisory_xact_lock(hashtextextended('oncely.audit_partitions', 0));
    for partition in
        select c.relname
        from pg_inherits as i
        join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass
          and c.relname ~ '^audit_[0-9]{8}$'
          and to_date(right(c.relname, 8), 'YYYYMMDD') + 7 <= before_time at time zone 'UTC'
        order by c.relname
    loop
        execute format('drop table oncely.%I', partition);
        return next partition;
    end loop;
    delete from oncely.audit_default where occurred_at < before_time;
end
$$;
comment on function oncely.drop_audit_partitions(timestamptz) is 'Drops the partitions that lie wholly before the time; returns their names.';
drop function oncely.drop_audit_partition(timestamptz);
drop function oncely.seal_audit();
drop function oncely.append_seal(text, timestamptz, timestamptz);
drop function oncely.seal_hash(oncely.audit_seals);
drop function oncely.audit_digest(timestamptz, timestamptz);
drop table oncely.audit_seals;
alter table oncely.upkeep drop column seal_mark_at, drop column seal_mark_xid;
alter table oncely.cell drop column audit_floor;
