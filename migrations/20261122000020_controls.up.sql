set local search_path = pg_catalog, pg_temp;

-- What people have told consumers to do. Every worker reads it every two seconds; while the database does not answer,
-- what a worker read last holds.
create table oncely.controls (
    consumer text collate "C" not null,
    paused_at timestamptz not null,
    paused_until timestamptz,
    paused_by text not null,
    reason text not null,
    constraint controls_pkey primary key (consumer),
    constraint controls_consumer check (octet_length(consumer) between 1 and 255),
    constraint controls_reason check (octet_length(reason) between 1 and 10000),
    constraint controls_times check (
        least(paused_at, paused_until) >= '1970-01-01 00:00:00+00'
        and greatest(paused_at, paused_until) <= '9999-12-31 00:00:00+00'
        and paused_until > paused_at
    )
);
comment on table oncely.controls is 'Consumers that somebody has paused (oncely.pause_consumer).';
comment on column oncely.controls.consumer is 'The consumer.';
comment on column oncely.controls.paused_at is 'When it was paused.';
comment on column oncely.controls.paused_until is 'When it goes on by itself; null: when somebody resumes it.';
comment on column oncely.controls.paused_by is
    'Who: the database''s session user, and in brackets what the client said of the user of the operating system.';
comment on column oncely.controls.reason is 'Why, in the person''s words.';

create function oncely.pause_consumer(consumer text, paused_until timestamptz, reason text, os_user text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Below each client's own limits: whoever waits for another's transaction is told so.
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
begin
    -- A typo would pause nobody, and look as if it had.
    if not exists (select from oncely.consumers as k where k.consumer = pause_consumer.consumer) then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', pause_consumer.consumer);
    end if;
    if pause_consumer.paused_until <= at or pause_consumer.paused_until > at + interval '3650 days' then
        raise exception using errcode = 'ONC11', message = 'oncely: a pause ends in the future, within ten years';
    end if;
    if coalesce(octet_length(pause_consumer.reason), 0) not between 1 and 10000 then
        raise exception using errcode = 'ONC11', message = 'oncely: a pause has a reason, of 10000 bytes at most';
    end if;
    insert into oncely.controls as c (consumer, paused_at, paused_until, paused_by, reason)
    values (
        pause_consumer.consumer, at, pause_consumer.paused_until,
        concat(session_user, ' (', left(pause_consumer.os_user, 255), ')'), pause_consumer.reason
    )
    on conflict (consumer) do update
    set paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_by = excluded.paused_by,
        reason = excluded.reason;
    -- Ranges that no memory reaches back to are dropped: a claim's own may be longer than the consumer's.
    update oncely.consumers as k
    set paused = k.paused * tstzmultirange(tstzrange(
            oncely.forgotten_before(at, interval '3650 days', k.paused), at
        )) + tstzmultirange(tstzrange(at, pause_consumer.paused_until))
    where k.consumer = pause_consumer.consumer;
    perform oncely.record_action(
        '', 'pause', jsonb_build_object('consumer', pause_consumer.consumer, 'until', pause_consumer.paused_until), 1,
        pause_consumer.reason, pause_consumer.os_user
    );
end
$$;
comment on function oncely.pause_consumer is
    'Pauses a consumer until a time, or without one until somebody resumes it; a second call changes reason and end. '
    'Recorded in operator_actions. Its workers return what has not begun and stay unsubscribed; its keys get no older.';
revoke execute on function oncely.pause_consumer from public;

create function oncely.resume_consumer(consumer text, reason text, os_user text) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    found_until timestamptz;
begin
    delete from oncely.controls as c
    where c.consumer = resume_consumer.consumer
    returning coalesce(c.paused_until, 'infinity') into found_until;
    update oncely.consumers as k
    set paused = k.paused * tstzmultirange(tstzrange(null, at))
    where k.consumer = resume_consumer.consumer and upper(k.paused) is distinct from least(upper(k.paused), at);
    if found_until is null or found_until <= at then
        return false;
    end if;
    perform oncely.record_action(
        '', 'resume', jsonb_build_object('consumer', resume_consumer.consumer), 1, resume_consumer.reason,
        resume_consumer.os_user
    );
    return true;
end
$$;
comment on function oncely.resume_consumer is
    'Ends a consumer''s pause; recorded in operator_actions. Returns whether it was paused.';
revoke execute on function oncely.resume_consumer from public;
