set local search_path = pg_catalog, pg_temp;

-- Holds the trail: one row per decision about a message, in the transaction of the decision, kept longer than the keys.
-- Appended to, and read by time or by key, never row by row: a primary key would be its most expensive part (1.9 of 8.0
-- microseconds and 126 of 388 bytes of WAL a row, measured).
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
-- Sets a replica identity: with a publication for all tables, PostgreSQL refuses to delete from a table without one;
-- rows are moved between partitions, and dropped from the default one. Not inherited: each partition has its own. It
-- costs nothing while rows are only added.
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

-- Summarised as it fills: a reader of the last seconds would else read all rows since the last vacuum.
create index audit_occurred_at on oncely.audit
using brin (occurred_at) with (pages_per_range = 128, autosummarize = on);
comment on index oncely.audit_occurred_at is
    'For spans of time: 209 bytes of WAL a row all told, where a B-tree would double that.';
-- Takes 8 bytes a row, not the whole key: +6 % WAL a message; a look-up by key still takes microseconds.
create index audit_key on oncely.audit (hashtextextended(key, 0));
comment on index oncely.audit_key is 'For "oncely explain KEY": compare hashtextextended(key, 0), then the key.';

-- Shows only rows that the view's reader may see.
create view oncely.processed_keys with (security_invoker = true) as
select tenant, consumer, key, occurred_at as processed_at, attempt, duration_us, queue, worker, trace_id, login
from oncely.audit
where outcome = 'completed';
comment on view oncely.processed_keys is 'What took effect, from the audit trail: outlives the idempotency keys.';

-- Holds rows until their partition is made: a missing one must never stop work.
create table oncely.audit_default partition of oncely.audit default;
alter table oncely.audit_default replica identity full;
comment on table oncely.audit_default is 'Rows whose week has no partition yet.';

-- from functions/make_audit_partition.sql
-- Makes a week's partition. Rows without one wait in the default one; while they are moved others arrive, and ATTACH
-- would fail, so writers wait for a moment. A week is a transaction: one that fails keeps no other week from being
-- made, nor an old one from being dropped. (security definer, because making a partition takes the owner of the table,
-- and the relay is not.)
create or replace function oncely.make_audit_partition(day timestamptz) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Shorter than deadlock_timeout: of two waiting sessions, this one gives way.
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
    -- Of two relays at once, the second waits, then finds it.
    perform oncely.take_lock('audit_partitions', false);
    if to_regclass(format('oncely.%I', partition)) is not null then
        return null;
    end if;
    execute format('create table oncely.%I (like oncely.audit including defaults including constraints)', partition);
    execute format('alter table oncely.%I replica identity full', partition);
    -- Moves most waiting rows, however many, while others go on writing.
    execute move using first, last;
    get diagnostics waited = row_count;
    -- Moves the rest without writers. Writers wait at the parent, before they choose a partition: one that waited at
    -- the default partition would come too late, and fail. A week to come without waiting rows has no writers yet.
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

-- from functions/make_audit_partitions.sql
create or replace function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz)
returns setof text
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

-- from functions/summarize_audit.sql
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

-- end of functions

-- Makes partitions before the first relay runs.
do $$ begin perform oncely.make_audit_partitions(now(), now() + interval '4 weeks'); end $$;

-- from functions/list_audit.sql
-- Lists decisions, for the command line, the console and psql (see oncely.visible_tenants). A null parameter turns its
-- filter off. A key is found through the index on its hash; else the caller chooses a span with few rows. The trail has
-- no key, and rows of one batch share a time: their place in the table tells them apart.
create or replace function oncely.list_audit(
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
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
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

-- from functions/count_audit.sql
create or replace function oncely.count_audit(since timestamptz, until timestamptz, most bigint) returns bigint
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return (
        select count(*)
        from (
            select 1 from oncely.audit as a
            where a.occurred_at >= since and a.occurred_at < until and (visible is null or a.tenant = any (visible))
            limit most
        ) as c
    );
end
$$;
comment on function oncely.count_audit is
    'How many decisions of a span there are, counted up to a number; rows as oncely.list_audit shows them.';
revoke execute on function oncely.count_audit from public;

-- from functions/oldest_audit.sql
create or replace function oncely.oldest_audit(since timestamptz default null, until timestamptz default null)
returns timestamptz
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Plans with the arguments: a null filter costs nothing, and an index serves the others.
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

-- from functions/record_decision.sql
-- Records the decisions of the functions for clients. Workers insert their rows themselves, many at once.
create or replace function oncely.record_decision(
    tenant text, consumer text, key text, outcome text, at timestamptz, attempt integer, queue text, worker text,
    trace_id text, duration_us numeric default null, reason text default null, error_code text default null,
    detail text default null
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
begin
    insert into oncely.audit (
        tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, reason, error_code, detail, worker,
        login, trace_id
    )
    values (
        tenant, at, attempt, duration_us, consumer, key, coalesce(queue, ''), outcome, reason, error_code, detail,
        oncely.worker_name(worker), session_login, trace_id
    );
end
$$;
comment on function oncely.record_decision is
    'Adds a decision of the session''s user to the trail. Not for callers.';
revoke execute on function oncely.record_decision from public;

-- end of functions

-- Holds the maintenance's state. One forward jump of the database's clock (such as a failover to a skewed host) makes
-- every key look old, and the next collection deletes them all. A correct clock leaves a trace: the maintenance reads
-- it every hour, and decisions carry its time.
create table oncely.maintenance (
    only_row boolean not null default true,
    clock_seen_at timestamptz not null,
    clock_refused_at timestamptz,
    seal_mark_at timestamptz,
    seal_mark_xid xid8,
    constraint maintenance_pkey primary key (only_row),
    constraint maintenance_has_one_row check (only_row),
    constraint maintenance_times check (
        least(clock_seen_at, clock_refused_at, seal_mark_at) >= '1970-01-01 00:00:00+00'
        and greatest(clock_seen_at, clock_refused_at, seal_mark_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.maintenance is 'One row: how far the maintenance of the tables has come.';
comment on column oncely.maintenance.only_row is 'Always true: keeps the table at one row.';
comment on column oncely.maintenance.clock_seen_at is
    'The latest time of the database''s clock that is explained: by the hourly look at it, by decisions in the '
    'trail, or by an operator.';
comment on column oncely.maintenance.clock_refused_at is
    'What the clock said when nothing explained it; null while all is well. Until then nothing is collected.';
comment on column oncely.maintenance.seal_mark_at is
    'A time for the next seals: what was decided before it is written when all transactions below seal_mark_xid are '
    'over.';
comment on column oncely.maintenance.seal_mark_xid is 'The first transaction after seal_mark_at.';
insert into oncely.maintenance (clock_seen_at) values (clock_timestamp());

-- from functions/observe_clock.sql
create or replace function oncely.observe_clock(
    out at timestamptz, out seen_at timestamptz, out bound interval, out explained boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    reached timestamptz;
begin
    select u.clock_seen_at into seen_at from oncely.maintenance as u for update;
    at := clock_timestamp();
    -- After a jump of twice as much, the shortest retention still covers the redelivery horizon.
    select greatest(
        interval '1 day',
        min(
            least(
                c.retention,
                case when l.retention is not null then greatest(l.retention, c.redelivery_horizon) end
            ) - c.redelivery_horizon
        ) / 2
    ) into bound
    from oncely.consumers as c
    cross join (select min(t.retention) as retention from oncely.tenant_limits as t) as l;
    reached := seen_at;
    -- Crosses a time without relays, from decision to decision.
    while reached + bound < at loop
        exit when not exists (
            select from oncely.audit as a where a.occurred_at > reached and a.occurred_at <= reached + bound
        );
        reached := reached + bound;
    end loop;
    explained := reached + bound >= at;
    update oncely.maintenance as u
    set clock_seen_at = case when explained then greatest(seen_at, at) else seen_at end,
        clock_refused_at = case when not explained then at end;
end
$$;
comment on function oncely.observe_clock is
    'Looks at the database''s clock: can what it says be explained by when it was last looked at, and by the trail '
    'since? Without that nothing is collected.';
revoke execute on function oncely.observe_clock from public;

-- from functions/accept_clock.sql
create or replace function oncely.accept_clock(os_user text, reason text) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz := clock_timestamp();
    known record;
begin
    select u.clock_seen_at, u.clock_refused_at into known from oncely.maintenance as u for update;
    update oncely.maintenance set clock_seen_at = at, clock_refused_at = null;
    perform oncely.record_action(
        '', 'accept clock',
        jsonb_build_object('from', known.clock_seen_at, 'refused_at', known.clock_refused_at, 'to', at), 1,
        accept_clock.reason, accept_clock.os_user
    );
    return at;
end
$$;
comment on function oncely.accept_clock is
    'An operator says that the database''s clock is right; recorded in operator_actions.';
revoke execute on function oncely.accept_clock from public;

-- end of functions

-- Holds seals. The trail is evidence only if no login can change it without a trace. All transactions write rows, so
-- they can't be chained one by one; the maintenance seals closed spans of time instead, with the hash of their rows and
-- of the seal before. A login that changes a row afterwards must forge all later seals, and the last hash that was
-- written down elsewhere (the relay logs it).
create table oncely.audit_seals (
    place bigint not null,
    kind text collate "C" not null,
    from_time timestamptz not null,
    until_time timestamptz not null,
    row_count bigint not null,
    digest bytea not null,
    previous bytea not null,
    hash bytea not null,
    sealed_at timestamptz not null,
    constraint audit_seals_pkey primary key (place),
    constraint audit_seals_kind check (kind in ('rows', 'erased', 'dropped')),
    constraint audit_seals_span check (from_time < until_time),
    constraint audit_seals_times check (
        least(from_time, until_time, sealed_at) >= '1970-01-01 00:00:00+00'
        and greatest(from_time, until_time, sealed_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.audit_seals is
    'A chain of seals over the trail; see oncely audit verify. They stay when their rows are dropped.';
comment on column oncely.audit_seals.place is 'Place in the chain, from 1.';
comment on column oncely.audit_seals.kind is
    'rows: what the trail held for the span. erased: what it holds since a tenant was erased from it. dropped: the '
    'trail was dropped up to the end of the span, after audit.retention.';
comment on column oncely.audit_seals.from_time is 'Beginning of the span; included.';
comment on column oncely.audit_seals.until_time is 'End of the span; not included.';
comment on column oncely.audit_seals.row_count is 'Rows of the span.';
comment on column oncely.audit_seals.digest is 'Hash of the rows (oncely.audit_digest).';
comment on column oncely.audit_seals.previous is 'Hash of the seal before; empty for the first.';
comment on column oncely.audit_seals.hash is 'Hash of all this (oncely.seal_hash).';
comment on column oncely.audit_seals.sealed_at is 'When it was sealed, by the database''s clock.';

-- from functions/audit_digest.sql
-- Hashes each row's text without its trailing nulls: a column that is added later changes no earlier hash. (A value
-- that ends in a comma or a bracket is quoted there.) Hashes second by second, so that no text grows too long, and in
-- the order of the hashes, since the rows have none.
create or replace function oncely.audit_digest(
    from_time timestamptz, until_time timestamptz, out row_count bigint, out digest bytea
)
language plpgsql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
set datestyle = 'ISO, YMD'
set bytea_output = 'hex'
as $$
#variable_conflict use_column
begin
    select coalesce(sum(s.row_count), 0)::bigint,
        sha256(coalesce(string_agg(s.digest, ''::bytea order by s.second), ''::bytea))
    into row_count, digest
    from (
        select r.second, count(*) as row_count, sha256(string_agg(r.digest, ''::bytea order by r.digest)) as digest
        from (
            select date_trunc('second', a.occurred_at) as second,
                sha256(convert_to(rtrim(a::text, ',)'), 'UTF8')) as digest
            from oncely.audit as a
            where a.occurred_at >= audit_digest.from_time and a.occurred_at < audit_digest.until_time
        ) as r
        group by r.second
    ) as s;
end
$$;
comment on function oncely.audit_digest is 'Rows of a span of the trail, and their hash.';
revoke execute on function oncely.audit_digest from public;

-- from functions/seal_hash.sql
create or replace function oncely.seal_hash(seal oncely.audit_seals) returns bytea
language sql stable
set search_path = pg_catalog, pg_temp
set timezone = 'UTC'
as $$
    select sha256(convert_to(
        jsonb_build_array(
            'oncely seal 1', seal.place, seal.kind, seal.from_time, seal.until_time, seal.row_count,
            encode(seal.digest, 'hex'), encode(seal.previous, 'hex'), seal.sealed_at
        )::text, 'UTF8'
    ))
$$;
comment on function oncely.seal_hash is 'The hash that a seal must have.';
revoke execute on function oncely.seal_hash from public;

-- from functions/append_seal.sql
create or replace function oncely.append_seal(kind text, from_time timestamptz, until_time timestamptz)
returns oncely.audit_seals
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    last record;
    seal oncely.audit_seals;
begin
    -- Only one session appends at a time.
    perform from oncely.maintenance for update;
    select s.place, s.hash into last from oncely.audit_seals as s order by s.place desc limit 1;
    seal.place := coalesce(last.place, 0) + 1;
    seal.previous := coalesce(last.hash, ''::bytea);
    seal.kind := append_seal.kind;
    seal.from_time := append_seal.from_time;
    seal.until_time := append_seal.until_time;
    seal.sealed_at := clock_timestamp();
    if append_seal.kind in ('rows', 'erased') then
        select d.row_count, d.digest into seal.row_count, seal.digest
        from oncely.audit_digest(append_seal.from_time, append_seal.until_time) as d;
    else
        seal.row_count := 0;
        seal.digest := ''::bytea;
    end if;
    seal.hash := oncely.seal_hash(seal);
    insert into oncely.audit_seals values (seal.*);
    return seal;
end
$$;
comment on function oncely.append_seal is 'Appends a seal to the chain.';
revoke execute on function oncely.append_seal from public;

-- from functions/seal_audit.sql
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

-- from functions/erase_trail.sql
-- Erases a tenant from the trail, one sealed span after another, each call in a transaction of its own. Sealed rows
-- change, so the span gets another seal, which says why. A span that does not match its seal gets none: an erasure must
-- not hide changes by another session. The remaining rows do not reveal the tenant: the pseudonym says nothing, and the
-- salt is stored nowhere. For the schema's owner alone.
create or replace function oncely.erase_trail(
    tenant text, pseudonym text, salt bytea, inout place bigint, out rows_erased bigint, out was_whole boolean
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
    span record;
    begins timestamptz := '-infinity';
    ends timestamptz := 'infinity';
begin
    rows_erased := 0;
    was_whole := true;
    -- No session seals meanwhile.
    perform from oncely.maintenance for update;
    select s.place, s.from_time, s.until_time into span
    from oncely.audit_seals as s
    where s.kind = 'rows' and s.place > erase_trail.place
    order by s.place
    limit 1;
    -- Rows that no seal covers come last.
    place := span.place;
    if span.place is not null then
        begins := span.from_time;
        ends := span.until_time;
        if not exists (
            select from oncely.audit as a
            where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends
        ) then
            return;
        end if;
        select s.row_count = d.row_count and s.digest = d.digest into was_whole
        from oncely.audit_seals as s
        cross join oncely.audit_digest(begins, ends) as d
        where s.kind in ('rows', 'erased') and s.from_time = begins and s.until_time = ends
        order by s.place desc
        limit 1;
    end if;
    if pseudonym is null then
        delete from oncely.audit as a
        where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends;
    else
        update oncely.audit as a
        set tenant = erase_trail.pseudonym,
            -- Rows of one key keep a common key.
            key = case
                when a.key = '' then ''
                else 'erased-' || encode(substr(sha256(erase_trail.salt || convert_to(a.key, 'UTF8')), 1, 16), 'hex')
            end,
            detail = null, trace_id = null,
            -- Removes names that contain the tenant's.
            queue = case when strpos(a.queue, erase_trail.tenant) > 0 then '' else a.queue end,
            worker = case when strpos(a.worker, erase_trail.tenant) > 0 then '' else a.worker end,
            login = case when strpos(a.login, erase_trail.tenant) > 0 then null else a.login end
        where a.tenant = erase_trail.tenant and a.occurred_at >= begins and a.occurred_at < ends;
    end if;
    get diagnostics rows_erased = row_count;
    if span.place is not null and was_whole then
        perform oncely.append_seal('erased', begins, ends);
    end if;
end
$$;
comment on function oncely.erase_trail is
    'Erases a tenant from the next sealed span of the trail after a place of the chain, or from what is not sealed '
    'where there is none (place is null then): its rows get a pseudonym, or go where that is null. Seals the span '
    'anew, unless it was not as it was sealed. For the schema''s owner; see oncely tenant erase.';
revoke execute on function oncely.erase_trail from public;

-- from functions/drop_audit_partition.sql
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

-- from functions/drop_audit_partitions.sql
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

-- end of functions
