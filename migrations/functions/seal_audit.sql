-- Seals a span. A row's time is taken before its transaction commits, so a span is closed when no session can still add
-- to it: when every transaction that existed at a mark is over, and ten minutes more for a time that was taken before
-- its transaction began to write.
create or replace function oncely.seal_audit(out until_time timestamptz, out row_count bigint, out hash bytea)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    held record;
    closed timestamptz;
    begins timestamptz;
    ends timestamptz;
    step interval;
    seal oncely.audit_seals;
begin
    select u.seal_mark_at, u.seal_mark_xid into held from oncely.maintenance as u for update;
    -- A restored copy counts transactions anew.
    if held.seal_mark_xid is null or held.seal_mark_xid > pg_snapshot_xmax(pg_current_snapshot()) then
        held.seal_mark_at := clock_timestamp();
        -- This transaction's: a snapshot's xmax may lie below running transactions, as long as no later one has ended.
        held.seal_mark_xid := pg_current_xact_id();
        update oncely.maintenance set seal_mark_at = held.seal_mark_at, seal_mark_xid = held.seal_mark_xid;
    end if;
    if pg_snapshot_xmin(pg_current_snapshot()) < held.seal_mark_xid then
        return;
    end if;
    closed := held.seal_mark_at - interval '10 minutes';
    select max(s.until_time) into begins from oncely.audit_seals as s;
    if begins is null then
        select min(to_date(right(c.relname, 8), 'YYYYMMDD'))::timestamp at time zone 'UTC' into begins
        from pg_inherits as i
        join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$';
    end if;
    if begins is null or begins >= closed then
        -- Sealed up to the mark: sets the next one.
        held.seal_mark_at := clock_timestamp();
        held.seal_mark_xid := pg_current_xact_id();
        update oncely.maintenance set seal_mark_at = held.seal_mark_at, seal_mark_xid = held.seal_mark_xid;
        return;
    end if;
    -- Seals as much as one statement hashes in a moment; a day at most, so that no span reaches into another week's
    -- partition.
    foreach step in array array[
        interval '1 day', interval '1 hour', interval '10 minutes', interval '1 minute', interval '1 second'
    ] loop
        ends := least(closed, date_bin(step, begins, timestamptz '2000-01-03 00:00:00+00') + step);
        exit when (
            select count(*) from (
                select 1 from oncely.audit as a where a.occurred_at >= begins and a.occurred_at < ends limit 50001
            ) as rows_there
        ) <= 50000;
    end loop;
    seal := oncely.append_seal('rows', begins, ends);
    until_time := seal.until_time;
    row_count := seal.row_count;
    hash := seal.hash;
end
$$;
comment on function oncely.seal_audit is
    'Seals the next closed span of the trail; returns nulls where there is none yet.';
revoke execute on function oncely.seal_audit from public;
