set local search_path = pg_catalog, pg_temp;

-- What a person may do to a key, beside freeing it with its dead letter.

create function oncely.settle_claim(
    tenant text, consumer text, key text, took_effect boolean, note text default null, os_user text default null,
    -- What was seen of the key by whoever says so; null: it is not compared.
    seen_attempts integer default null, seen_token bigint default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    settled boolean;
    run integer;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    update oncely.idempotency_keys as i
    set status = case when took_effect then 'COMPLETED' else 'IN_PROGRESS' end::oncely.key_status,
        completed_at = case when took_effect then coalesce(i.completed_at, at) end, reason = null, last_error = null,
        owner = null, run_ends_at = null,
        -- A no is worth a call's: it begins afresh, in the next round, and is remembered from now on.
        attempts = case when took_effect then i.attempts else 0 end,
        crash_attempts = case when took_effect then i.crash_attempts else 0 end,
        error_code = case when took_effect then i.error_code end,
        not_before = case when not took_effect then at end,
        expires_at = case
            when took_effect then i.expires_at
            else oncely.bounded(at + (i.expires_at - coalesce(i.completed_at, i.created_at)))
        end,
        steps = case when took_effect then i.steps else oncely.reopen_steps(i.steps, false) end,
        -- Where nothing is known to have been done, it may run without a lease, too.
        fencing_token = case when took_effect or oncely.has_done(i.steps) then i.fencing_token end
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and (
          i.status = 'FAILED'
          -- Ran under a lease, and nobody holds it any more.
          or (
              i.status = 'IN_PROGRESS' and i.fencing_token is not null
              and (i.owner is null or i.not_before <= clock_timestamp())
          )
      )
      -- Another run may have ended since somebody looked, of which nobody knows either.
      and (
          seen_attempts is null
          or (i.attempts = seen_attempts and i.fencing_token is not distinct from seen_token)
      )
    returning i.attempts into run;
    settled := found;
    if settled then
        -- When the key is collected, the trail alone remembers it: a letter of it must not run then. Who it was stands
        -- in operator_actions, which not everybody reads who reads the trail.
        if settle_claim.took_effect then
            insert into oncely.audit (
                tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker
            )
            values (
                settle_claim.tenant, at, run, settle_claim.consumer, settle_claim.key, '', 'completed',
                'settled by hand', 'operator'
            );
        end if;
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
        values (
            settle_claim.tenant, oncely.uuid_v7(at), at, concat(session_user, ' (' || left(os_user, 255) || ')'),
            'settle_claim',
            jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect),
            1, left(note, 8000)
        );
    end if;
    return settled;
end
$$;
comment on function oncely.settle_claim is
    'Says of a key that was given up, for whatever reason, or of one that runs under leases left open, whether it took '
    'effect (COMPLETED) or not (may run again with all its attempts, and the steps that began in their next round), '
    'after somebody has looked. False where the key is none of these. For operators.';
revoke execute on function oncely.settle_claim from public;

-- A message that does harm is set aside by hand: its key is given up before the message comes again, which then becomes
-- a dead letter without having run.
create function oncely.park(tenant text, consumer text, key text, why text, out outcome text, out known_reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    text_kept text := 'set aside by hand' || coalesce(': ' || left(park.why, 1000), '');
    known record;
begin
    perform oncely.check_argument('tenant', park.tenant), oncely.check_argument('consumer', park.consumer),
        oncely.check_argument('key', park.key);
    for round in 1..8 loop
        -- Waits for whoever has the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, reason, last_error
        )
        values (park.tenant, park.consumer, park.key, 'FAILED', 0, at, at, 'parked', text_kept)
        on conflict (tenant, consumer, key) do nothing;
        if found then
            outcome := 'parked';
            return;
        end if;
        select i.status, i.reason, i.owner into known
        from oncely.idempotency_keys as i
        where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key
        for update;
        continue when not found;
        known_reason := known.reason;
        case
            when known.status = 'COMPLETED' then
                outcome := 'completed';
            when known.status = 'FAILED' then
                outcome := 'given_up';
            -- Its run may be calling outside at this moment: take the lease from it first (oncely.revoke_lease).
            when known.owner is not null then
                outcome := 'held';
            else
                update oncely.idempotency_keys as i
                set status = 'FAILED', completed_at = at, reason = 'parked', last_error = text_kept, expires_at = null,
                    not_before = null
                where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key;
                outcome := 'parked';
        end case;
        return;
    end loop;
    raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be parked',
        hint = 'Try again.';
end
$$;
comment on function oncely.park is
    'Sets a message aside by hand: its key is given up with the reason parked, so that the next delivery is '
    'dead-lettered without having run. Outcome: parked; completed (it took effect), given_up (before, for '
    'known_reason) or held (a run has it by a lease), and nothing was changed.';
revoke execute on function oncely.park from public;

-- A Redis that was emptied or replaced, or an epoch that changed, leaves completed keys to PostgreSQL alone. They are
-- said again as oncely.complete says them: the relay makes the tags, so nobody needs the mirror's key for it. Said
-- twice, nothing changes. created_at is now, behind what has just been completed; completed_at keeps the key as long as
-- its record is pending; expires_at is the key's own end, so no entry outlives its key.
create function oncely.mirror_again(
    consumer text, since timestamptz, most integer, inout place_time timestamptz, inout place_tenant text,
    inout place_key text, out records bigint
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at constant timestamptz := clock_timestamp();
    remembered interval;
begin
    -- In turn with an erasure: what it deletes is not said again behind it.
    perform from oncely.cell for share;
    select c.retention into remembered from oncely.consumers as c where c.consumer = mirror_again.consumer;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', mirror_again.consumer);
    end if;
    if mirror_again.since is null or mirror_again.place_time is null
        or coalesce(mirror_again.most, 0) not between 1 and 10000
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: mirror_again takes a time, a place to begin at, and from 1 to 10000 keys';
    end if;
    with again as (
        select i.tenant, i.key, i.fingerprint, i.completed_at,
            least(
                coalesce(
                    i.expires_at,
                    i.completed_at
                        + case when l.tenant is not null then greatest(l.retention, e.mirror_ttl) else remembered end
                ),
                '9999-12-31 00:00:00+00'
            ) as expires_at
        from oncely.idempotency_keys as i
        cross join oncely.cell as e
        left join oncely.tenant_limits as l on l.tenant = i.tenant and l.retention is not null
        where i.status = 'COMPLETED' and i.consumer = mirror_again.consumer
            and i.completed_at >= mirror_again.since and i.completed_at <= mirror_again.place_time
            and (
                mirror_again.place_key is null
                or (i.completed_at, i.tenant, i.key)
                    < (mirror_again.place_time, mirror_again.place_tenant, mirror_again.place_key)
            )
        order by i.completed_at desc, i.tenant desc, i.key desc
        limit mirror_again.most
    ),
    said as (
        insert into oncely.mirror_queue
            (tenant, id, kind, created_at, expires_at, completed_at, consumer, key, fingerprint)
        select a.tenant, oncely.uuid_v7(at), 'identity', at, a.expires_at, a.completed_at, mirror_again.consumer, a.key,
            a.fingerprint
        from again as a
        where a.expires_at > at
        returning 1
    ),
    last as (
        select a.completed_at, a.tenant, a.key from again as a order by a.completed_at, a.tenant, a.key limit 1
    )
    select (select l.completed_at from last as l), (select l.tenant from last as l), (select l.key from last as l),
        (select count(*) from said)
    into place_time, place_tenant, place_key, records;
end
$$;
comment on function oncely.mirror_again is
    'Writes mirror records for completed keys of a consumer once more, the newest first, from a place on (a time, or '
    'the key that the call before ended with) back to a time. Returns how many, and where it ended: nulls at the end. '
    'For operators.';
revoke execute on function oncely.mirror_again from public;

-- Keys that a consumer had processed before it had Oncely, by the thousand. Born COMPLETED, without a fingerprint:
-- nobody knows their payloads any more, so the key alone decides. A row of the trail for each, at the time of the
-- seeding (what is sealed is sealed), because the trail is asked once the key is collected. No record for the mirror:
-- PostgreSQL knows them, and oncely.mirror_again says them to Redis.
--
-- Arrays, and no temporary table: a function that runs as its owner must not read what the caller may have made a view.
create function oncely.seed_keys(
    consumer text, tenants text[], keys text[], completed timestamptz[], retention interval default null,
    out seeded bigint, out known bigint, out too_old bigint, out conflicts jsonb
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at constant timestamptz := clock_timestamp();
    asked constant integer := cardinality(seed_keys.tenants);
    -- Those that are still remembered.
    of_tenants text[];
    their_keys text[];
    their_times timestamptz[];
    -- Another database's clock may be ahead by a little: what has just been processed was processed now.
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
    if seed_keys.retention <= interval '0' or seed_keys.retention > interval '36525 days'
        or extract(year from seed_keys.retention) not between -200 and 200
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: retention is not a time to come, of 100 years at most',
            hint = 'Such as interval ''7 days''; or null, where the retention of a worker''s consumer counts.';
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
    -- In the order of the keys, as workers claim them.
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
            'oncely keys seed', session_user
        from fresh as f
    )
    select count(*) into seeded from fresh;
    -- A statement of its own, with a snapshot of its own: it sees what others have.
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

-- What lists keys (see oncely.visible_tenants), page by page along an index. Not what a handler answered: an auditor
-- may not read that.
create function oncely.list_keys(
    of_tenant text default null, of_consumer text default null, of_status oncely.key_status default null,
    since timestamptz default null, until timestamptz default null, behind timestamptz default null,
    behind_tenant text default null, behind_consumer text default null, behind_key text default null,
    most bigint default 100
)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, crash_attempts integer,
    created_at timestamptz, completed_at timestamptz, expires_at timestamptz, not_before timestamptz, reason text,
    error_code text, last_error text
)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- Planned with the status, whose partial index serves it.
set plan_cache_mode = force_custom_plan
-- Statistics that are out of date must not have a big table read as a whole.
set enable_seqscan = off
set enable_bitmapscan = off
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    if of_status is null then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.tenant = of_tenant
            and (visible is null or i.tenant = any (visible))
            and (of_consumer is null or i.consumer = of_consumer)
            and (behind_consumer is null or (i.consumer, i.key) > (behind_consumer, behind_key))
        order by i.consumer, i.key
        limit most;
    elsif of_status = 'IN_PROGRESS' then
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.created_at >= since)
            and (until is null or i.created_at < until)
            and (
                behind is null
                or i.created_at <= behind and (i.created_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.created_at desc, i.tenant desc, i.key desc
        limit most;
    else
        return query
        select i.tenant, i.consumer, i.key, i.status::text, i.attempts, i.crash_attempts, oncely.bounded(i.created_at),
            oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), oncely.bounded(i.not_before), i.reason,
            i.error_code, i.last_error
        from oncely.idempotency_keys as i
        where i.status = of_status
            and i.consumer = of_consumer
            and (visible is null or i.tenant = any (visible))
            and (of_tenant is null or i.tenant = of_tenant)
            and (since is null or i.completed_at >= since)
            and (until is null or i.completed_at < until)
            and (
                behind is null
                or i.completed_at <= behind and (i.completed_at, i.tenant, i.key) < (behind, behind_tenant, behind_key)
            )
        order by i.completed_at desc, i.tenant desc, i.key desc
        limit most;
    end if;
end
$$;
comment on function oncely.list_keys is
    'Keys without what their handlers answered: without a status those of a tenant, by consumer and key; else those of '
    'a consumer, the newest first (by their end; of IN_PROGRESS by their beginning). For operators and auditors; a '
    'member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.list_keys from public;

create function oncely.find_key(of_key text, of_tenant text default null, of_consumer text default null)
returns table (
    tenant text, consumer text, key text, status text, attempts integer, created_at timestamptz,
    completed_at timestamptz, expires_at timestamptz, fingerprint bytea, http_status smallint, reason text,
    last_error text, not_before timestamptz, owner text, fencing_token bigint
)
language plpgsql stable security definer rows 10
set search_path = pg_catalog, pg_temp
-- So that a filter that is null costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select i.tenant, i.consumer, i.key, i.status::text, i.attempts, oncely.bounded(i.created_at),
        oncely.bounded(i.completed_at), oncely.bounded(i.expires_at), i.fingerprint, i.http_status, i.reason,
        i.last_error, oncely.bounded(i.not_before), i.owner, i.fencing_token
    from (
        -- The primary key begins with the tenant: where it is not known, the trail's index on the key's hash tells it.
        select a.tenant, a.consumer
        from oncely.audit as a
        where of_tenant is null and hashtextextended(a.key, 0) = hashtextextended(of_key, 0) and a.key = of_key
        -- Not decided, so not in the trail: claimed and left, at work, parked. Few, and the partial indexes hold them.
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'FAILED' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where of_tenant is null and k.status = 'IN_PROGRESS' and k.key = of_key
        union
        select k.tenant, k.consumer from oncely.idempotency_keys as k
        where k.tenant = of_tenant and k.key = of_key
    ) as n
    join oncely.idempotency_keys as i on i.tenant = n.tenant and i.consumer = n.consumer and i.key = of_key
    where (visible is null or i.tenant = any (visible))
        and (of_consumer is null or i.consumer = of_consumer)
    order by i.tenant, i.consumer;
end
$$;
comment on function oncely.find_key is
    'What is known of a key, without what its handlers answered, under each tenant and consumer that has it. For '
    'operators and auditors; a member of oncely_tenant_auditor is shown its tenants'' rows.';
revoke execute on function oncely.find_key from public;

create function oncely.list_retentions(at timestamptz, of_tenants text[])
returns table (tenant text, consumer text, retention interval)
language plpgsql stable security definer rows 100
set search_path = pg_catalog, pg_temp
-- So that a filter that is null costs nothing, and an index serves the others.
set plan_cache_mode = force_custom_plan
set debug_print_plan = off
as $$
declare
    visible constant text[] := oncely.visible_tenants();
begin
    return query
    select t.tenant, c.consumer, oncely.tenant_retention(
        at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until), c.redelivery_horizon,
        e.mirror_ttl, l.retention, l.former_retention, l.former_until
    )
    from unnest(of_tenants) as t (tenant)
    cross join oncely.consumers as c
    cross join oncely.cell as e
    left join oncely.tenant_limits as l on l.tenant = t.tenant
    where visible is null or t.tenant = any (visible);
end
$$;
comment on function oncely.list_retentions is
    'For how long keys of tenants are kept, by consumer, pauses left aside. For operators and auditors; a member of '
    'oncely_tenant_auditor is told of its tenants.';
revoke execute on function oncely.list_retentions from public;
