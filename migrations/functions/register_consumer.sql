-- Registers a consumer. A worker may lengthen a retention and a horizon, never shorten one: during a deployment,
-- workers of both configurations have copies to recognise, and a worker's login can't have keys deleted.
create or replace function oncely.register_consumer(
    consumer text, retention interval, redelivery_horizon interval, fingerprint text, on_conflict text, worker text,
    out known_retention interval, out known_redelivery_horizon interval, out former_fingerprint text
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    who text := concat(session_user, ' (', left(register_consumer.worker, 255), ')');
begin
    redelivery_horizon := justify_hours(oncely.checked_time(
        'the redelivery horizon', register_consumer.redelivery_horizon, interval '1 second', interval '3650 days'
    ));
    -- With a retention shorter than the horizon, a late copy would not be recognised. The longest of each stays, so the
    -- stored retention is not shorter than the stored horizon either.
    retention := justify_hours(oncely.checked_time(
        'the retention (at least the redelivery horizon)', register_consumer.retention,
        register_consumer.redelivery_horizon, interval '3650 days'
    ));
    select c.fingerprint into former_fingerprint
    from oncely.consumers as c
    where c.consumer = register_consumer.consumer
    for update;
    insert into oncely.consumers as c
        (
            consumer, retention, longest_retention, redelivery_horizon, fingerprint, on_conflict, registered_at,
            changed_at, changed_by
        )
    values (
        register_consumer.consumer, register_consumer.retention, register_consumer.retention,
        register_consumer.redelivery_horizon, coalesce(register_consumer.fingerprint, 'body'),
        coalesce(register_consumer.on_conflict, 'dead_letter'), at, at, who
    )
    on conflict (consumer) do update
    set retention = greatest(c.retention, excluded.retention),
        longest_retention = greatest(c.longest_retention, excluded.retention),
        redelivery_horizon = greatest(c.redelivery_horizon, excluded.redelivery_horizon),
        fingerprint = coalesce(register_consumer.fingerprint, c.fingerprint),
        on_conflict = coalesce(register_consumer.on_conflict, c.on_conflict), changed_at = excluded.changed_at,
        changed_by = excluded.changed_by
    where (
            greatest(c.retention, excluded.retention), greatest(c.redelivery_horizon, excluded.redelivery_horizon),
            coalesce(register_consumer.fingerprint, c.fingerprint),
            coalesce(register_consumer.on_conflict, c.on_conflict)
        )
        is distinct from (c.retention, c.redelivery_horizon, c.fingerprint, c.on_conflict);
    insert into oncely.turns (consumer) values (register_consumer.consumer) on conflict (consumer) do nothing;
    select c.retention, c.redelivery_horizon into known_retention, known_redelivery_horizon
    from oncely.consumers as c
    where c.consumer = register_consumer.consumer;
end
$$;
comment on function oncely.register_consumer is
    'Notes what a worker starts with. The longest retention and the longest horizon stay; returns them, and the '
    'fingerprint policy of before. ONC11: the retention is shorter than the horizon. A fingerprint or on_conflict that '
    'is null leaves what is known (where nothing is: body, dead_letter).';
revoke execute on function oncely.register_consumer from public;
