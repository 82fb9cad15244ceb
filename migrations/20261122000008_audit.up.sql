set local search_path = pg_catalog, pg_temp;

-- The trail: one row per decision about a message, in the transaction of the decision, kept longer than the keys.
-- Appended to, and read by time or by key, never row by row: it has no primary key, which would be its dearest part
-- (1.9 of 8.0 microseconds and 126 of 388 bytes of WAL a row, measured).
create table oncely.audit (
    tenant text collate "C" not null,
    occurred_at timestamptz not null,
    attempt integer not null,
    duration_us bigint,
    consumer text collate "C" not null,
    key text collate "C" not null,
    queue text collate "C" not null,
    outcome text collate "C" not null,
    reason text collate "C",
    error_code text collate "C",
    detail text,
    worker text collate "C" not null,
    trace_id text collate "C",
    login text collate "C",
    constraint audit_outcome check (
        outcome in (
            'completed', 'refused', 'duplicate', 'retried', 'dead_lettered', 'observed', 'taken_over', 'fenced'
        )
    ),
    constraint audit_times check (
        least(occurred_at) >= '1970-01-01 00:00:00+00' and greatest(occurred_at) <= '9999-12-31 00:00:00+00'
    )
) partition by range (occurred_at);
-- Where somebody has made a publication for all tables, PostgreSQL refuses to delete from one without a replica
-- identity; rows are moved between partitions, and dropped from the default one. Not inherited: each partition has its
-- own. It costs nothing while rows are only added.
alter table oncely.audit replica identity full;
comment on table oncely.audit is
    'Append-only: what was decided about which message, when and by whom. Weekly partitions.';
comment on column oncely.audit.tenant is 'Whose message; empty where the message had no valid one.';
comment on column oncely.audit.occurred_at is 'Time of the decision, by the database''s clock.';
comment on column oncely.audit.attempt is 'Which run of the handler; 0 where it did not run.';
comment on column oncely.audit.duration_us is
    'Microseconds from the start of the batch to the decision; null where nothing ran.';
comment on column oncely.audit.consumer is 'For which consumer.';
comment on column oncely.audit.key is 'Which message; empty where it had no valid key.';
comment on column oncely.audit.queue is 'The queue it came from.';
comment on column oncely.audit.outcome is
    'completed, refused (the handler said no, and that is the answer), duplicate (listed only where '
    'audit.duplicates = true), retried or dead_lettered; observed: by a consumer in mode = "observe", and nothing ran; '
    'taken_over: a lease had run out, and another run began; fenced: the run that had lost its lease so came back.';
comment on column oncely.audit.reason is
    'Stable reason code; for a duplicate who knew it: mirror, postgres or batch; for an observed message null (the '
    'first of its key), duplicate, unsure, or the reason for which it would have been a dead letter.';
comment on column oncely.audit.error_code is 'SQLSTATE of the error, where it was one of PostgreSQL.';
comment on column oncely.audit.detail is 'For people.';
comment on column oncely.audit.worker is
    'The name that the worker process, or the caller of oncely.complete or oncely.fail, gives itself.';
comment on column oncely.audit.trace_id is 'Trace id of the W3C traceparent header that the message carried.';
comment on column oncely.audit.login is
    'The session''s user, where oncely.complete or oncely.fail wrote the row; null where a worker process did (role '
    'oncely_worker).';

-- Summarised as it fills: whoever reads the last seconds would else read all that came since the last vacuum.
create index audit_occurred_at on oncely.audit
using brin (occurred_at) with (pages_per_range = 128, autosummarize = on);
comment on index oncely.audit_occurred_at is
    'For spans of time: 209 bytes of WAL a row all told, where a B-tree would double that.';
-- 8 bytes a row instead of the whole key: +6 % WAL a message, and a look-up by key still takes microseconds.
create index audit_key on oncely.audit (hashtextextended(key, 0));
comment on index oncely.audit_key is 'For "oncely explain KEY": compare hashtextextended(key, 0), then the key.';

-- Views see what their reader may see.
create view oncely.processed_keys with (security_invoker = true) as
select tenant, consumer, key, occurred_at as processed_at, attempt, duration_us, queue, worker, trace_id, login
from oncely.audit
where outcome = 'completed';
comment on view oncely.processed_keys is 'What took effect, from the audit trail: outlives the idempotency keys.';

-- A missing partition must never stop work: rows wait here until their partition is made.
create table oncely.audit_default partition of oncely.audit default;
alter table oncely.audit_default replica identity full;
comment on table oncely.audit_default is 'Rows whose week has no partition yet.';

-- Rows of a week without a partition wait in the default one. While they are moved others come after them, and ATTACH
-- would refuse: so whoever writes waits for a moment. One week is one transaction: one that can't be made keeps no
-- other from being made, nor an old one from being dropped. (security definer, because making a partition takes the
-- owner of the table, and the relay is not.)
create function oncely.make_audit_partition(day timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Shorter than deadlock_timeout: who gives way where somebody waits for us is we.
set lock_timeout = '900ms'
as $$
declare
    week timestamp := date_trunc('week', day at time zone 'UTC');
    partition text := 'audit_' || to_char(week, 'YYYYMMDD');
    first timestamptz := week at time zone 'UTC';
    last timestamptz := (week + interval '7 days') at time zone 'UTC';
    move text;
    waited bigint;
begin
    -- The settings allow 366 days ahead.
    if isfinite(day) is not true or day > clock_timestamp() + interval '400 days' then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no partition of the trail is made for %s: more than 400 days ahead', day);
    end if;
    move := format(
        'with moved as (delete from oncely.audit_default where occurred_at >= $1 and occurred_at < $2 returning *) '
        'insert into oncely.%I select * from moved',
        partition
    );
    -- Two relays at once: the second waits, then finds it made.
    perform oncely.take_lock('audit_partitions', false);
    if to_regclass(format('oncely.%I', partition)) is not null then
        return null;
    end if;
    execute format('create table oncely.%I (like oncely.audit including defaults including constraints)', partition);
    execute format('alter table oncely.%I replica identity full', partition);
    -- Most of what waits, however much it is, while others go on writing.
    execute move using first, last;
    get diagnostics waited = row_count;
    -- The rest while nobody writes. Writers wait at the parent, before they choose a partition: one that waited at the
    -- default partition would come too late, and fail. A week to come that nothing waits for is nobody's at the moment.
    if waited > 0 or first <= clock_timestamp() then
        lock table only oncely.audit in share row exclusive mode;
        lock table oncely.audit_default in access exclusive mode;
        execute move using first, last;
    end if;
    execute format(
        'alter table oncely.audit attach partition oncely.%I for values from (%L) to (%L)', partition, first, last
    );
    execute format(
        'comment on table oncely.%I is %L', partition,
        'Audit rows of the week that begins on ' || week::date || ' (UTC).'
    );
    return partition;
end
$$;
comment on function oncely.make_audit_partition is
    'Makes the weekly partition that a time belongs to; returns its name, or null where it is there. To be called '
    'in a transaction of its own.';
revoke execute on function oncely.make_audit_partition from public;

create function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    week timestamptz := date_trunc('week', from_time at time zone 'UTC') at time zone 'UTC';
    partition text;
begin
    if (isfinite(from_time) and isfinite(until_time)) is not true or until_time > from_time + interval '3660 days' then
        raise exception using errcode = 'ONC11',
            message = format('oncely: %s to %s are more than 3660 days of partitions', from_time, until_time);
    end if;
    while week < until_time loop
        partition := oncely.make_audit_partition(week);
        if partition is not null then
            return next partition;
        end if;
        week := week + interval '168 hours';
    end loop;
end
$$;
comment on function oncely.make_audit_partitions is
    'Makes the weekly partitions that touch the span and do not exist, in one transaction; returns their names.';
revoke execute on function oncely.make_audit_partitions from public;

-- Autovacuum summarises what it was asked to once a minute, and drops requests when there are many: up to then whoever
-- reads the last seconds reads all that came since. Full ranges alone: one that still fills would have its summary
-- changed with each transaction that comes. 64 ranges are half a million rows.
--
-- Summarising that is broken off (by a time limit, a shutdown, whoever needs the lock of autovacuum) leaves a mark on
-- its range that only desummarising takes away, and from that range to the partition's end the index rules nothing out
-- any more. What is cancelled here is taken back at once; what ended with its session is found by nobody, so all of the
-- last 1,024 ranges (eight million rows) are made anew where that is wanted. Two at once do no harm: each step holds
-- the lock of a vacuum, and a range between two steps is read.
create function oncely.summarize_audit(anew boolean default false, skip integer default 0) returns integer
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- A vacuum summarises, too, and gives up for whoever waits as long as deadlock_timeout.
set lock_timeout = '100ms'
-- PostgreSQL warns of each mark that is taken away.
set client_min_messages = error
as $$
declare
    -- Long before a statement_timeout.
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
                -- For an hour the week before.
                to_regclass(format('oncely.audit_%s', to_char(
                    date_trunc('week', (clock_timestamp() - interval '1 hour') at time zone 'UTC'), 'YYYYMMDD'
                )))
            )
        -- What waits for a partition first, then the newest week.
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

-- So that a database has partitions before the first relay runs.
do $$ begin perform oncely.make_audit_partitions(now(), now() + interval '4 weeks'); end $$;

-- What lists rows, for the command line, the console and psql (see oncely.visible_tenants). Each filter is off where
-- its parameter is null. The key goes through the index on its hash; else the caller chooses a span that holds few
-- rows. The trail has no key, and rows of one batch have one time: the place in the table tells them apart.
create function oncely.list_audit(
    of_tenant text default null, of_consumer text default null, of_key text default null,
    of_outcome text default null, of_reason text default null, of_worker text default null,
    since timestamptz default null, until timestamptz default null,
    behind timestamptz default null, behind_part bigint default null, behind_place text default null,
    most bigint default 100
)
returns table (
    tenant text, occurred_at timestamptz, consumer text, key text, queue text, outcome text, reason text,
    error_code text, detail text, attempt integer, duration_us bigint, worker text, login text, trace_id text,
    part bigint, place text
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- So that a filter that is null costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select a.tenant, oncely.bounded(a.occurred_at), a.consumer, a.key, a.queue, a.outcome, a.reason, a.error_code,
        a.detail, a.attempt, a.duration_us, a.worker, a.login, a.trace_id, a.tableoid::bigint, a.ctid::text
    from oncely.audit as a
    where (visible is null or a.tenant = any (visible))
        and (since is null or a.occurred_at >= since)
        and (until is null or a.occurred_at < until)
        and (behind is null or (a.occurred_at, a.tableoid::bigint, a.ctid) < (behind, behind_part, behind_place::tid))
        and (of_tenant is null or a.tenant = of_tenant)
        and (of_consumer is null or a.consumer = of_consumer)
        and (of_key is null or (hashtextextended(a.key, 0) = hashtextextended(of_key, 0) and a.key = of_key))
        and (of_outcome is null or a.outcome = of_outcome)
        and (of_reason is null or a.reason = of_reason)
        and (of_worker is null or a.worker = of_worker)
    order by a.occurred_at desc, a.tableoid::bigint desc, a.ctid desc
    limit most;
end
$$;
comment on function oncely.list_audit is
    'The newest decisions of a span, behind a place where one is given. For operators and auditors; a member of '
    'oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_audit from public;

create function oncely.count_audit(since timestamptz, until timestamptz, most bigint) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- So that a filter that is null costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return (
        select count(*)
        from (
            select from oncely.audit as a
            where a.occurred_at >= since and a.occurred_at < until and (visible is null or a.tenant = any (visible))
            limit most
        ) as c
    );
end
$$;
comment on function oncely.count_audit is
    'How many decisions of a span there are, counted up to a number; rows as oncely.list_audit shows them.';
revoke execute on function oncely.count_audit from public;

create function oncely.oldest_audit(since timestamptz default null, until timestamptz default null)
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- So that a filter that is null costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return (
        select oncely.bounded(min(a.occurred_at)) from oncely.audit as a
        where a.occurred_at >= coalesce(since, '-infinity') and a.occurred_at < coalesce(until, 'infinity')
            and (visible is null or a.tenant = any (visible))
    );
end
$$;
comment on function oncely.oldest_audit is
    'When the oldest decision of a span was taken; rows as oncely.list_audit shows them.';
revoke execute on function oncely.oldest_audit from public;
