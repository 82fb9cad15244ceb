set local search_path = pg_catalog, pg_temp;

-- One forward jump of the database's clock (a failover to a skewed host, say) makes every key look old, and the next
-- collection deletes them all. A clock that goes right leaves a trace: the maintenance looks at it every hour,
-- and decisions carry its time.
create table oncely.maintenance (
    only_row boolean not null default true,
    clock_seen_at timestamptz not null,
    clock_refused_at timestamptz,
    seal_mark_at timestamptz,
    seal_mark_xid xid8,
    constraint maintenance_pkey primary key (only_row),
    constraint maintenance_has_one_row check (only_row),
    constraint maintenance_times check (
        least(clock_seen_at, clock_refused_at, seal_mark_at) >= '1970-01-01 00:00:00+00'
        and greatest(clock_seen_at, clock_refused_at, seal_mark_at) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.maintenance is 'One row: how far the maintenance of the tables has come.';
comment on column oncely.maintenance.only_row is 'Always true: keeps the table at one row.';
comment on column oncely.maintenance.clock_seen_at is
    'The latest time of the database''s clock that is explained: by the hourly look at it, by decisions in the '
    'trail, or by an operator.';
comment on column oncely.maintenance.clock_refused_at is
    'What the clock said when nothing explained it; null while all is well. Until then nothing is collected.';
comment on column oncely.maintenance.seal_mark_at is
    'A time for the next seals: what was decided before it is written when all transactions below seal_mark_xid are '
    'over.';
comment on column oncely.maintenance.seal_mark_xid is 'The first transaction after seal_mark_at.';
insert into oncely.maintenance (clock_seen_at) values (clock_timestamp());

create function oncely.observe_clock(
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
    -- A jump of twice as much leaves what may still come back in the shortest memory.
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
    -- Over a time in which no relay ran, from decision to decision.
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

create function oncely.accept_clock(os_user text, reason text) returns timestamptz
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
