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
