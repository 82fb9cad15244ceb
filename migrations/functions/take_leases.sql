-- Claims many keys at once: one statement, one commit. No claim waits for long, since all others wait with it.
--
-- One statement claims the keys without a row: its fixed cost (it parses each constraint anew) is several times a
-- row's. Each other key is claimed by itself.
create or replace function oncely.take_leases(
    tenants text[],
    consumer text,
    keys text[],
    prints bytea[],
    owners text[],
    lease interval,
    max_run interval,
    on_conflict text,
    max_crashes integer,
    queues text[],
    worker text,
    trace_ids text[],
    may_take_over boolean,
    out place bigint,
    out outcome text,
    out token bigint,
    out attempt integer,
    out crashes integer,
    out delay interval,
    out reason text,
    out detail text
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
declare
    own bigint := pg_current_xact_id()::text::bigint;
    at timestamptz := clock_timestamp();
    micros bigint := extract(epoch from at) * 1000000;
    -- Places of the keys without a row.
    fresh bigint[];
begin
    perform oncely.check_claim(max_crashes), oncely.asking_since();
    lease := oncely.checked_time('lease', lease, interval '1 second', interval '1 day');
    max_run := oncely.checked_time('max_run', max_run, lease, interval '30 days');
    with asked as materialized (
        select q.tenant, q.key, q.print, q.owner, q.place
        from unnest(tenants, keys, prints, owners) with ordinality as q (tenant, key, print, owner, place)
    ),
    claimed as (
        insert into oncely.idempotency_keys as i (
            tenant, consumer, key, status, attempts, created_at, fingerprint, not_before, claimed_in, owner,
            fencing_token, run_ends_at
        )
        select a.tenant, consumer, a.key, 'IN_PROGRESS', 0, at, a.print, at + lease, own, a.owner, micros, at + max_run
        from asked as a
        order by a.place
        on conflict on constraint idempotency_keys_pkey do nothing
        returning i.tenant, i.key, i.owner
    )
    select coalesce(array_agg(a.place order by a.place), '{}') into fresh
    from asked as a
    -- Joins by owner, too: of two copies in one call only one is granted.
    join claimed as c on c.tenant = a.tenant and c.key = a.key and c.owner = a.owner;
    return query
    select f.place, 'granted', micros, 1, 0, null::interval, null::text, null::text
    from unnest(fresh) as f (place);
    if cardinality(fresh) < cardinality(keys) then
        return query
        select q.place, t.outcome, t.token, t.attempt, t.crashes, t.delay, t.reason, t.detail
        from unnest(tenants, keys, prints, owners, queues, trace_ids) with ordinality
            as q (tenant, key, print, owner, queue, trace_id, place)
        cross join lateral oncely.take_lease(
            q.tenant, consumer, q.key, q.print, q.owner, lease, max_run, null, on_conflict, max_crashes, q.queue,
            worker, q.trace_id, true, may_take_over
        ) as t
        where q.place <> all (fresh);
    end if;
    -- A run that had to wait for others gets its whole time.
    if clock_timestamp() > at + interval '1 second' then
        at := clock_timestamp();
        update oncely.idempotency_keys as i
        set not_before = at + lease, run_ends_at = at + max_run
        from unnest(tenants, keys) with ordinality as q (tenant, key, place)
        where oncely.in_group(i.tenant, tenants) and i.tenant = q.tenant and i.consumer = consumer and i.key = q.key
            and q.place = any (fresh);
    end if;
end
$$;
comment on function oncely.take_leases is
    'oncely.take_lease for many messages at once, by their places. 55P03: a key is held by an open transaction; then '
    'each is asked for by itself. For workers.';
revoke execute on function oncely.take_leases from public;
