create or replace function oncely.set_tenant_retention(
    tenant text, retention interval, os_user text, reason text
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz;
    who constant text := concat(session_user, ' (', left(set_tenant_retention.os_user, 255), ')');
    longest_entry interval;
    known record;
begin
    perform oncely.check_argument('tenant', set_tenant_retention.tenant);
    if set_tenant_retention.retention is not null then
        retention := justify_hours(oncely.checked_time(
            'a retention', set_tenant_retention.retention, interval '1 second', interval '3650 days'
        ));
    end if;
    -- Takes turns with register_mirror_ttl: a relay not counted here has yet to read the value set here.
    select c.mirror_ttl into longest_entry from oncely.cell as c for update;
    at := clock_timestamp();
    insert into oncely.tenant_limits as l (tenant, changed_at, changed_by)
    values (set_tenant_retention.tenant, at, who)
    on conflict (tenant) do nothing;
    select l.retention, l.former_retention, l.former_until into known
    from oncely.tenant_limits as l
    where l.tenant = set_tenant_retention.tenant
    for update;
    -- Earlier entries live on; and whether null ("as the consumers say") is shorter depends on the consumer.
    if (set_tenant_retention.retention >= known.retention) is not true and longest_entry > interval '0'
        and set_tenant_retention.retention is distinct from known.retention
    then
        update oncely.tenant_limits as l
        set former_retention = greatest(
                known.retention, case when known.former_until > at then known.former_retention end
            ),
            former_until = greatest(known.former_until, at + longest_entry + interval '1 hour')
        where l.tenant = set_tenant_retention.tenant;
    end if;
    update oncely.tenant_limits as l
    set retention = set_tenant_retention.retention,
        longest_retention = greatest(l.longest_retention, set_tenant_retention.retention), changed_at = at,
        changed_by = who
    where l.tenant = set_tenant_retention.tenant;
    delete from oncely.tenant_limits as l
    where l.tenant = set_tenant_retention.tenant and l.letters is null and l.letter_bytes is null
        and l.events is null and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        set_tenant_retention.tenant, 'set retention',
        jsonb_build_object('from', known.retention::text, 'to', set_tenant_retention.retention::text), 1,
        set_tenant_retention.reason, set_tenant_retention.os_user
    );
    return known.retention;
end
$$;
comment on function oncely.set_tenant_retention is
    'Sets how long a tenant''s keys are remembered, longer or shorter than its consumers say; null: as they say. '
    'Recorded in operator_actions. Returns what it was. What counts in the end: oncely.tenant_retention.';
revoke execute on function oncely.set_tenant_retention from public;
