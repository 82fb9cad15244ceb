create or replace function oncely.limit_events(
    tenant text, events bigint, event_bytes bigint, os_user text, reason text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_argument('tenant', limit_events.tenant);
    if limit_events.events < 0 or limit_events.event_bytes < 0 then
        raise exception using errcode = 'ONC11', message = 'oncely: a limit is not below 0';
    end if;
    insert into oncely.tenant_limits as l (tenant, events, event_bytes, changed_at, changed_by)
    values (
        limit_events.tenant, limit_events.events, limit_events.event_bytes, clock_timestamp(),
        concat(session_login, ' (', left(limit_events.os_user, 255), ')')
    )
    on conflict (tenant) do update
    set events = excluded.events, event_bytes = excluded.event_bytes, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    delete from oncely.tenant_limits as l
    where l.tenant = limit_events.tenant and l.letters is null and l.letter_bytes is null and l.events is null
        and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        limit_events.tenant, 'limit events',
        jsonb_build_object('events', limit_events.events, 'event_bytes', limit_events.event_bytes), 1,
        limit_events.reason, limit_events.os_user
    );
end
$$;
comment on function oncely.limit_events is
    'Says how many of a tenant''s events may wait, and how many bytes of them, before oncely.emit refuses those of '
    'clients; null: what oncely.cell says. Recorded in operator_actions.';
revoke execute on function oncely.limit_events from public;
