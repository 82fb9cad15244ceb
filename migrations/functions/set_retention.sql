create or replace function oncely.set_retention(
    consumer text, retention interval, redelivery_horizon interval, os_user text, reason text
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    known record;
    horizon interval;
    longest_entry interval;
    at timestamptz;
begin
    -- Takes turns with register_mirror_ttl: a relay not counted here has yet to read the value set here.
    select c.mirror_ttl into longest_entry from oncely.cell as c for update;
    select c.retention, c.redelivery_horizon, c.former_retention, c.former_until into known
    from oncely.consumers as c
    where c.consumer = set_retention.consumer
    for update;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', set_retention.consumer);
    end if;
    horizon := justify_hours(oncely.checked_time(
        'the redelivery horizon', coalesce(set_retention.redelivery_horizon, known.redelivery_horizon),
        interval '1 second', interval '3650 days'
    ));
    retention := justify_hours(oncely.checked_time(
        'the retention', set_retention.retention, interval '1 second', interval '3650 days'
    ));
    if set_retention.retention < horizon then
        raise exception using errcode = 'ONC11',
            message = format('oncely: the retention would be shorter than the redelivery horizon, %s', horizon),
            hint = 'A copy that may still come would not be recognised.';
    end if;
    if set_retention.retention < longest_entry then
        raise exception using errcode = 'ONC11',
            message = format('oncely: the retention would be shorter than mirror.ttl, %s', longest_entry),
            hint = 'A mirror entry would outlive its key: shorten mirror.ttl, restart the relays, and try again when '
                'as much time has passed as it was, and three hours.';
    end if;
    at := clock_timestamp();
    -- The collection uses the longest retention that entries may have been written under, until they are over: also
    -- those of a relay that has read its records and sees this a moment later.
    if set_retention.retention < known.retention and longest_entry > interval '0' then
        update oncely.consumers as c
        set former_retention = oncely.effective_retention(
                at, known.retention, known.former_retention, known.former_until
            ),
            former_until = at + longest_entry + interval '1 hour'
        where c.consumer = set_retention.consumer;
    end if;
    update oncely.consumers as c
    set retention = set_retention.retention, redelivery_horizon = horizon,
        longest_retention = greatest(c.longest_retention, set_retention.retention), changed_at = at,
        changed_by = concat(session_login, ' (', left(set_retention.os_user, 255), ')')
    where c.consumer = set_retention.consumer;
    perform oncely.record_action(
        '', 'set retention',
        jsonb_build_object(
            'consumer', set_retention.consumer, 'from', known.retention::text, 'to', set_retention.retention::text,
            'redelivery_horizon_from', known.redelivery_horizon::text, 'redelivery_horizon_to', horizon::text
        ), 1,
        set_retention.reason, set_retention.os_user
    );
    return known.retention;
end
$$;
comment on function oncely.set_retention is
    'Sets how long a consumer''s keys are remembered and, unless it is null, how old a copy may be that still comes; '
    'shorter too; recorded in operator_actions. Returns what the retention was.';
revoke execute on function oncely.set_retention from public;
