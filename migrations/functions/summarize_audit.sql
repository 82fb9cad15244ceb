-- Summarises the trail's end. Autovacuum handles requests once a minute, and drops some when there are many: until then
-- a reader of the last seconds reads all rows since. Covers full ranges only: a range that still fills would have its
-- summary changed with each transaction. 64 ranges are half a million rows.
--
-- An interrupted summarisation (by a time limit, a shutdown, a session that needs autovacuum's lock) leaves a mark on
-- its range that only desummarising removes, and from that range to the partition's end the index rules nothing out any
-- more. A cancelled one is undone here at once; one that ended with its session can't be detected, so the last 1,024
-- ranges (eight million rows) are made anew on request. Two sessions at once do no harm: each step holds the lock of a
-- vacuum, and a range between two steps is read.
create or replace function oncely.summarize_audit(anew boolean default false, skip integer default 0) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- A vacuum summarises, too, and gives way to a session that waits as long as deadlock_timeout.
set lock_timeout = '100ms'
-- PostgreSQL warns of each mark removed.
set client_min_messages = error
as $$
declare
    -- Well before a statement_timeout.
    deadline timestamptz := clock_timestamp() + interval '200 milliseconds';
    first_range integer := greatest(coalesce(skip, 0), 0);
    next_range integer := first_range;
    one record;
begin
    for one in
        select i.indexrelid as index, range * 128 as block
        from pg_inherits as h
        join pg_index as i on i.indexrelid = h.inhrelid
        cross join lateral (
            select pg_relation_size(i.indrelid) / current_setting('block_size')::bigint / 128 as full_ranges
        ) as s
        cross join lateral generate_series(
            full_ranges - 1, greatest(full_ranges - case when anew then 1024 else 64 end, 0), -1
        ) as range
        where h.inhparent = 'oncely.audit_occurred_at'::regclass
            and i.indrelid in (
                'oncely.audit_default'::regclass,
                to_regclass(format('oncely.audit_%s', to_char(
                    date_trunc('week', clock_timestamp() at time zone 'UTC'), 'YYYYMMDD'
                ))),
                -- For an hour, last week's, too.
                to_regclass(format('oncely.audit_%s', to_char(
                    date_trunc('week', (clock_timestamp() - interval '1 hour') at time zone 'UTC'), 'YYYYMMDD'
                )))
            )
        -- Rows without a partition first, then the newest week.
        order by i.indrelid::regclass::text desc, range desc
        offset first_range
    loop
        if next_range > first_range and clock_timestamp() >= deadline then
            return next_range;
        end if;
        begin
            if anew then
                perform brin_desummarize_range(one.index, one.block);
            end if;
            perform brin_summarize_range(one.index, one.block);
        exception
            when query_canceled then
                begin
                    perform brin_desummarize_range(one.index, one.block);
                exception
                    when lock_not_available then
                        null;
                end;
                raise;
        end;
        next_range := next_range + 1;
    end loop;
    return null;
exception
    when lock_not_available then
        return next_range;
end
$$;
comment on function oncely.summarize_audit is
    'Brings the trail''s index on time up to date for what came last, newest first; anew: also where it is, but may be '
    'broken. Ends after 200 ms: returns how many ranges to skip next time, or null when all is done. Relays call it.';
revoke execute on function oncely.summarize_audit from public;
