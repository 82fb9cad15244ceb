create or replace function oncely.drop_audit_partitions(before_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    partition text;
begin
    loop
        partition := oncely.drop_audit_partition(before_time);
        exit when partition is null;
        return next partition;
    end loop;
end
$$;
comment on function oncely.drop_audit_partitions is
    'Drops the partitions that lie wholly before the time, in one transaction; returns their names. See '
    'oncely.drop_audit_partition.';
revoke execute on function oncely.drop_audit_partitions from public;
