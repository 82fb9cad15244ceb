-- The trail: one row per decision about a message, in the transaction of the decision, kept longer than the keys.
create table oncely.audit (
    tenant text collate "C" not null,
    occurred_at timestamptz not null,
    id uuid not null,
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
    constraint audit_pkey primary key (tenant, occurred_at, id),
    constraint audit_outcome check (outcome in ('completed', 'duplicate', 'retried', 'dead_lettered'))
) partition by range (occurred_at);
comment on table oncely.audit is 'Append-only: what was decided about which message, when and by whom. Weekly partitions.';
comment on column oncely.audit.tenant is 'Whose message; empty where the message had no valid one.';
comment on column oncely.audit.occurred_at is 'Time of the decision, by the database''s clock.';
comment on column oncely.audit.id is 'Random (version 7); says nothing about order.';
comment on column oncely.audit.attempt is 'Which run of the handler; 0 where it did not run.';
comment on column oncely.audit.duration_us is 'Microseconds from the start of the batch to the decision; null where nothing ran.';
comment on column oncely.audit.consumer is 'For which consumer.';
comment on column oncely.audit.key is 'Which message; empty where it had no valid key.';
comment on column oncely.audit.queue is 'The queue it came from.';
comment on column oncely.audit.outcome is 'completed, duplicate (listed only where audit.duplicates = true), retried or dead_lettered.';
comment on column oncely.audit.reason is 'Stable reason code; for a duplicate who knew it: mirror, postgres or batch.';
comment on column oncely.audit.error_code is 'SQLSTATE of the error, where it was one of PostgreSQL.';
comment on column oncely.audit.detail is 'For people.';
comment on column oncely.audit.worker is 'Name of the worker process.';
comment on column oncely.audit.trace_id is 'Trace id of the W3C traceparent header that the message carried.';

create index audit_occurred_at on oncely.audit using brin (occurred_at);
comment on index oncely.audit_occurred_at is 'For spans of time: 209 bytes of WAL a row all told, where a B-tree would double that.';
-- 8 bytes a row instead of the whole key: +6 % WAL a message, and a look-up by key still takes microseconds.
create index audit_key on oncely.audit (hashtextextended(key, 0));
comment on index oncely.audit_key is 'For "oncely explain KEY": compare hashtextextended(key, 0), then the key.';

-- A missing partition must never stop work: rows wait here until their partition is made.
create table oncely.audit_default partition of oncely.audit default;
comment on table oncely.audit_default is 'Rows whose week has no partition yet.';

-- security definer, because making a partition takes the owner of the table, and the relay is not.
create function oncely.make_audit_partitions(from_time timestamptz, until_time timestamptz) returns setof text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '2s'
as $$
declare
    week timestamp := date_trunc('week', from_time at time zone 'UTC');
    partition text;
    first timestamptz;
    last timestamptz;
begin
    -- Two relays at once: the second waits, then finds everything made.
    perform pg_advisory_xact_lock(hashtextextended('oncely.audit_partitions', 0));
    while week < until_time at time zone 'UTC' loop
        partition := 'audit_' || to_char(week, 'YYYYMMDD');
        first := week at time zone 'UTC';
        last := (week + interval '7 days') at time zone 'UTC';
        if to_regclass(format('oncely.%I', partition)) is null then
            execute format('create table oncely.%I (like oncely.audit including defaults including constraints)', partition);
            -- What came before its partition was made moves over; ATTACH would refuse otherwise.
            execute format(
                'with moved as (delete from oncely.audit_default where occurred_at >= $1 and occurred_at < $2 returning *) '
                'insert into oncely.%I select * from moved',
                partition
            ) using first, last;
            execute format('alter table oncely.audit attach partition oncely.%I for values from (%L) to (%L)', partition, first, last);
            execute format('comment on table oncely.%I is %L', partition, 'Audit rows of the week that begins on ' || week::date || ' (UTC).');
            return next partition;
        end if;
        week := week + interval '7 days';
    end loop;
end
$$;
comment on function oncely.make_audit_partitions(timestamptz, timestamptz) is 'Makes the weekly partitions that touch the span and do not exist; returns their names.';

create function oncely.drop_audit_partitions(before_time timestamptz) returns setof text
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

-- So that a database has partitions before the first relay runs.
do $$ begin perform oncely.make_audit_partitions(now(), now() + interval '4 weeks'); end $$;

create view oncely.processed_keys as
select tenant, consumer, key, occurred_at as processed_at, attempt, duration_us, queue, worker, trace_id
from oncely.audit
where outcome = 'completed';
comment on view oncely.processed_keys is 'What took effect, from the audit trail: outlives the idempotency keys.';

create view oncely.dead_letters as
select tenant, consumer, key, occurred_at as dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id
from oncely.audit
where outcome = 'dead_lettered';
comment on view oncely.dead_letters is 'What was given up, and why.';
