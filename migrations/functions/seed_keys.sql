-- Inserts keys that a consumer had processed before it had Oncely, by the thousand: as COMPLETED, without a fingerprint
-- (payloads are unknown, so the key alone decides). Adds a trail row for each, at the time of the seeding (sealed spans
-- stay sealed), because the trail is read once the key is collected. Adds no mirror record: PostgreSQL knows the keys,
-- and oncely.mirror_again writes them.
--
-- Takes arrays, no temporary table: a function that runs as its owner must not read a name that may be a caller's view.
create or replace function oncely.seed_keys(
    consumer text, tenants text[], keys text[], completed timestamptz[], retention interval default null,
    out seeded bigint, out known bigint, out too_old bigint, out conflicts jsonb
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at constant timestamptz := clock_timestamp();
    asked constant integer := cardinality(seed_keys.tenants);
    -- Keys that are still remembered.
    of_tenants text[];
    their_keys text[];
    their_times timestamptz[];
    -- Another database's clock may be slightly ahead: a time just ahead counts as now.
    times constant timestamptz[] := array(
        select case when c.completed > at + interval '15 minutes' then c.completed else least(c.completed, at) end
        from unnest(seed_keys.completed) with ordinality as c (completed, place)
        order by c.place
    );
    wrong record;
    young bigint;
    there bigint;
begin
    perform oncely.check_argument('consumer', seed_keys.consumer);
    if (asked between 1 and 10000 and cardinality(seed_keys.keys) = asked and cardinality(times) = asked)
        is not true
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: seed_keys takes from 1 to 10000 tenants, and as many keys and times';
    end if;
    if seed_keys.retention is not null then
        retention := oncely.checked_time(
            'retention', seed_keys.retention, interval '1 microsecond', interval '36525 days'
        );
    end if;
    select u.tenant, u.key, u.completed into wrong
    from unnest(seed_keys.tenants, seed_keys.keys, times) as u (tenant, key, completed)
    where (
        octet_length(u.tenant) between 1 and 255 and octet_length(u.key) between 1 and 255
        and u.completed between '1970-01-01 00:00:00+00' and at
    ) is not true
    limit 1;
    if found then
        perform oncely.check_argument('tenant', wrong.tenant), oncely.check_argument('key', wrong.key);
        raise exception using errcode = 'ONC11',
            message = format('oncely: a key was completed at %s', wrong.completed),
            hint = 'Between 1970 and now, by the database''s clock (15 minutes ahead count as now); or null for now.';
    end if;
    with memories as (
        select t.tenant,
            oncely.forgotten_before(
                at,
                coalesce(
                    oncely.claimed_retention(t.tenant, seed_keys.retention),
                    oncely.tenant_retention(
                        at, c.retention, c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention,
                        l.former_until
                    )
                ),
                coalesce(c.paused, '{}')
            ) as forgotten
        from (select distinct u.tenant from unnest(seed_keys.tenants) as u (tenant)) as t
        cross join oncely.cell as e
        left join oncely.consumers as c on c.consumer = seed_keys.consumer
        left join oncely.tenant_limits as l on l.tenant = t.tenant
    )
    select array_agg(u.tenant order by u.place), array_agg(u.key order by u.place),
        array_agg(u.completed order by u.place), count(distinct (u.tenant, u.key))
    into of_tenants, their_keys, their_times, young
    from unnest(seed_keys.tenants, seed_keys.keys, times) with ordinality as u (tenant, key, completed, place)
    join memories as m on m.tenant = u.tenant
    where (u.completed <= m.forgotten) is not true;
    too_old := asked - coalesce(cardinality(of_tenants), 0);
    -- In key order, as workers claim them.
    with given as (
        select distinct on (u.tenant collate "C", u.key collate "C") u.tenant, u.key, u.completed
        from unnest(of_tenants, their_keys, their_times) as u (tenant, key, completed)
        order by u.tenant collate "C", u.key collate "C", u.completed desc
    ),
    fresh as (
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, expires_at
        )
        select g.tenant, seed_keys.consumer, g.key, 'COMPLETED', 0, g.completed, g.completed,
            g.completed + oncely.claimed_retention(g.tenant, seed_keys.retention)
        from given as g
        order by g.tenant collate "C", g.key collate "C"
        on conflict (tenant, consumer, key) do nothing
        returning tenant, key, completed_at
    ),
    told as (
        insert into oncely.audit (
            tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker, login
        )
        select f.tenant, at, 0, seed_keys.consumer, f.key, '', 'completed',
            'seeded: processed elsewhere at '
                || to_char(f.completed_at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"'),
            'oncely keys seed', session_login
        from fresh as f
    )
    select count(*) into seeded from fresh;
    -- A separate statement, with a snapshot of its own, sees other sessions' keys.
    select count(*),
        coalesce(
            jsonb_agg(
                jsonb_build_object('tenant', i.tenant, 'key', i.key, 'status', i.status, 'reason', i.reason)
                order by i.tenant, i.key
            ) filter (where i.status <> 'COMPLETED'),
            '[]'
        )
    into there, conflicts
    from (
        select distinct u.tenant, u.key from unnest(of_tenants, their_keys) as u (tenant, key)
    ) as g
    join oncely.idempotency_keys as i
        on i.tenant = g.tenant and i.consumer = seed_keys.consumer and i.key = g.key;
    if there <> young then
        raise exception using errcode = 'ONC14',
            message = 'oncely: a key was collected while it was seeded', hint = 'Try again.';
    end if;
    known := asked - too_old - seeded - jsonb_array_length(conflicts);
end
$$;
comment on function oncely.seed_keys is
    'Makes keys known as COMPLETED that were processed before the consumer had Oncely, with a row of the trail each; '
    'keys that are known stay as they are. Says how many were new, known or named twice, and past the retention; '
    'conflicts are those that are FAILED or IN_PROGRESS here. A retention makes keys carry their own end, as '
    'oncely.claim does. For operators.';
revoke execute on function oncely.seed_keys from public;
