-- Notifies a relay that waits for events. Nothing depends on a notification: without it, a relay finds the event at its
-- next read (relay.poll). At its commit a transaction with a notification takes a lock that the whole server shares,
-- waits for it no longer than lock_timeout, and keeps it until its commit is flushed. So none is sent unless a relay
-- waits, which holds the first advisory lock; nor while another transaction with one is under way, which holds the
-- second: after that one's commit the relay reads again and again. Any login may take these locks, and can thereby
-- delay events until the next read, or have one transaction at a time notify. No notification is sent where a commit
-- waits for a standby, or where transactions can be prepared, which PostgreSQL refuses after one, or when the server's
-- queue of notifications fills up, as its end fails commits.
create or replace function oncely.notify_relay() returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
begin
    -- One expression, which can't be interrupted between the two calls.
    if (case when pg_try_advisory_lock_shared(1332634476, 1) then pg_advisory_unlock_shared(1332634476, 1) end) is null
        and current_setting('max_prepared_transactions') = '0'
        and current_setting('synchronous_standby_names') = ''
        and pg_notification_queue_usage() < 0.5
        and pg_try_advisory_xact_lock(1332634476, 2)
    then
        perform pg_notify('oncely_events', '');
    end if;
end
$$;
comment on function oncely.notify_relay is
    'Notifies a relay that waits for events, when the transaction commits. Not for callers.';
revoke execute on function oncely.notify_relay from public;
