create or replace function oncely.resume_consumer(consumer text, reason text, os_user text) returns boolean
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
