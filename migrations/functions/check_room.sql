-- Checks the counts that relays take once a minute (oncely.count_letters), so that no emit waits for another one's
-- count: events written in between may exceed a limit. The limit stops a client that stores without bound, and is too
-- high for an application to reach while its broker is away for a day.
create or replace function oncely.check_room(tenant text) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    full_of record;
begin
    if pg_has_role(session_user, current_user, 'member') then
        return;
    end if;
    select u.events, u.event_bytes, coalesce(l.events, c.tenant_events) as most,
        coalesce(l.event_bytes, c.tenant_event_bytes) as most_bytes
    into full_of
    from oncely.letter_usage as u
    cross join oncely.cell as c
    left join oncely.tenant_limits as l on l.tenant = u.tenant
    where u.tenant = check_room.tenant
        and (
            u.events >= coalesce(l.events, c.tenant_events)
            or u.event_bytes >= coalesce(l.event_bytes, c.tenant_event_bytes)
        );
    if found then
        raise exception using errcode = 'ONC22',
            message = format(
                'oncely: %s events of the tenant %L wait, with %s bytes; %s may, with %s bytes', full_of.events,
                check_room.tenant, full_of.event_bytes, full_of.most, full_of.most_bytes
            ),
            hint = format(
                'This event was not written. Emit again when relays have published some (oncely status), or have an '
                'operator allow more: oncely tenant limit %L --events %s --event-bytes %s',
                check_room.tenant, full_of.most * 2, full_of.most_bytes * 2
            );
    end if;
end
$$;
comment on function oncely.check_room is
    'Refuses (SQLSTATE ONC22) a client''s event where too many of its tenant wait. The schema''s owner is not refused.';
revoke execute on function oncely.check_room from public;
