create or replace function oncely.observe_clock(
    out at timestamptz, out seen_at timestamptz, out bound interval, out explained boolean
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    reached timestamptz;
begin
    select u.clock_seen_at into seen_at from oncely.maintenance as u for update;
    at := clock_timestamp();
    -- After a jump of twice as much, the shortest retention still covers the redelivery horizon.
    select greatest(
        interval '1 day',
        min(
            least(
                c.retention,
                case when l.retention is not null then greatest(l.retention, c.redelivery_horizon) end
            ) - c.redelivery_horizon
        ) / 2
    ) into bound
    from oncely.consumers as c
    cross join (select min(t.retention) as retention from oncely.tenant_limits as t) as l;
    reached := seen_at;
    -- Crosses a time without relays, from decision to decision.
    while reached + bound < at loop
        exit when not exists (
            select from oncely.audit as a where a.occurred_at > reached and a.occurred_at <= reached + bound
        );
        reached := reached + bound;
    end loop;
    explained := reached + bound >= at;
    update oncely.maintenance as u
    set clock_seen_at = case when explained then greatest(seen_at, at) else seen_at end,
        clock_refused_at = case when not explained then at end;
end
$$;
comment on function oncely.observe_clock is
    'Looks at the database''s clock: can what it says be explained by when it was last looked at, and by the trail '
    'since? Without that nothing is collected.';
revoke execute on function oncely.observe_clock from public;
