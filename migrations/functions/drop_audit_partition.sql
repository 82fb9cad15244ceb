create or replace function oncely.drop_audit_partition(before_time timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '900ms'
as $$
declare
    partition text;
    cutoff timestamptz;
    least_age interval;
    known timestamptz;
    gone bigint;
begin
    select c.audit_floor into least_age from oncely.cell as c;
    -- A clock that has jumped makes no row old (oncely.observe_clock).
    select least(u.clock_seen_at, clock_timestamp()) into known from oncely.maintenance as u;
    if before_time is null or before_time > known - least_age then
        raise exception using errcode = 'ONC20',
            message = format('oncely: the trail is kept for %s at least, up to %s', least_age, known),
            hint = 'The owner of the schema can lower it: update oncely.cell set audit_floor = …';
    end if;
    perform oncely.take_lock('audit_partitions', false);
    select c.relname, (to_date(right(c.relname, 8), 'YYYYMMDD') + 7)::timestamp at time zone 'UTC'
    into partition, cutoff
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'oncely.audit'::regclass
      and c.relname ~ '^audit_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') + 7 <= before_time at time zone 'UTC'
    order by c.relname
    limit 1;
    if partition is not null then
        execute format('drop table oncely.%I', partition);
    else
        cutoff := date_trunc('week', before_time at time zone 'UTC') at time zone 'UTC';
    end if;
    delete from oncely.audit_default where occurred_at < cutoff;
    get diagnostics gone = row_count;
    if partition is not null or gone > 0 then
        select max(s.until_time) into known from oncely.audit_seals as s where s.kind = 'dropped';
        if known is null or known < cutoff then
            perform oncely.append_seal('dropped', coalesce(known, '1970-01-01 00:00:00+00'), cutoff);
        end if;
    end if;
    return partition;
end
$$;
comment on function oncely.drop_audit_partition is
    'Drops the oldest partition that lies wholly before the time; returns its name, or null where there is none. '
    'Nothing that is younger than oncely.cell.audit_floor (SQLSTATE ONC20). To be called in a transaction of its '
    'own.';
revoke execute on function oncely.drop_audit_partition from public;
