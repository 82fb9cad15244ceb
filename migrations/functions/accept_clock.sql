create or replace function oncely.accept_clock(os_user text, reason text) returns timestamptz
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    at timestamptz := clock_timestamp();
    known record;
begin
    select u.clock_seen_at, u.clock_refused_at into known from oncely.maintenance as u for update;
    update oncely.maintenance set clock_seen_at = at, clock_refused_at = null;
    perform oncely.record_action(
        '', 'accept clock',
        jsonb_build_object('from', known.clock_seen_at, 'refused_at', known.clock_refused_at, 'to', at), 1,
        accept_clock.reason, accept_clock.os_user
    );
    return at;
end
$$;
comment on function oncely.accept_clock is
    'An operator says that the database''s clock is right; recorded in operator_actions.';
revoke execute on function oncely.accept_clock from public;
