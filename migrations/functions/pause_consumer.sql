create or replace function oncely.pause_consumer(consumer text, paused_until timestamptz, reason text, os_user text)
returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Below each client's own limits: a session that waits for another transaction gets an error.
set lock_timeout = '1500ms'
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
begin
    -- A misspelt name would pause no consumer, and look as if it had.
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
        concat(session_login, ' (', left(pause_consumer.os_user, 255), ')'), pause_consumer.reason
    )
    on conflict (consumer) do update
    set paused_at = excluded.paused_at, paused_until = excluded.paused_until, paused_by = excluded.paused_by,
        reason = excluded.reason;
    -- Drops ranges that no retention reaches back to: a claim's own may be longer than the consumer's.
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
    'Pauses a consumer until a time, or without one until it is resumed; a second call changes reason and end. '
    'Recorded in operator_actions. Its workers return what has not begun and stay unsubscribed; its keys get no older.';
revoke execute on function oncely.pause_consumer from public;
