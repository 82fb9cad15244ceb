set local search_path = pg_catalog, pg_temp;

-- Holds the settings that decide about a key, the same for every process: a collection that relied on its own file
-- deleted keys that a worker with another file still needed.
create table oncely.consumers (
    consumer text collate "C" not null,
    retention interval not null,
    redelivery_horizon interval not null,
    longest_retention interval not null,
    former_retention interval,
    former_until timestamptz,
    fingerprint text collate "C" not null,
    on_conflict text collate "C" not null,
    registered_at timestamptz not null,
    changed_at timestamptz not null,
    changed_by text not null,
    paused tstzmultirange not null default '{}',
    constraint consumers_pkey primary key (consumer),
    constraint consumers_consumer check (octet_length(consumer) between 1 and 255),
    constraint consumers_retention check (retention between interval '1 second' and interval '3650 days'),
    constraint consumers_redelivery_horizon check (
        redelivery_horizon between interval '1 second' and interval '3650 days'
    ),
    constraint consumers_former check ((former_retention is null) = (former_until is null)),
    -- An interval with months has another length when it is compared than when it is added.
    constraint consumers_have_no_months check (
        (extract(year from retention), extract(month from retention)) = (0, 0)
        and (extract(year from longest_retention), extract(month from longest_retention)) = (0, 0)
        and (extract(year from redelivery_horizon), extract(month from redelivery_horizon)) = (0, 0)
        and (extract(year from former_retention), extract(month from former_retention)) = (0, 0)
    ),
    constraint consumers_fingerprint check (octet_length(fingerprint) between 1 and 100000),
    constraint consumers_on_conflict check (on_conflict in ('dead_letter', 'duplicate')),
    constraint consumers_times check (
        least(registered_at, changed_at, former_until) >= '1970-01-01 00:00:00+00'
        and greatest(registered_at, changed_at, former_until) <= '9999-12-31 00:00:00+00'
    )
);
comment on table oncely.consumers is
    'Consumers whose workers have started here, and what decides about their keys. The garbage collection deletes '
    'no key of a consumer that is not listed.';
comment on column oncely.consumers.consumer is 'The consumer.';
comment on column oncely.consumers.retention is
    'How long its keys are remembered: the longest that a worker has started with, until an operator shortens it '
    '(oncely retention set).';
comment on column oncely.consumers.redelivery_horizon is
    'The oldest copy of a message that may still come: the longest that a worker has started with, until an operator '
    'shortens it (oncely retention set). A tenant''s shorter retention ends there.';
comment on column oncely.consumers.longest_retention is
    'The longest that its keys were ever remembered: for letters whose key was known under that one.';
comment on column oncely.consumers.former_retention is
    'How long they were remembered before that was shortened: the garbage collection goes by it until former_until.';
comment on column oncely.consumers.former_until is
    'When the last mirror entry is over that may have been written under former_retention.';
comment on column oncely.consumers.fingerprint is
    'What is compared when a key comes back, as the worker that started last has it.';
comment on column oncely.consumers.on_conflict is
    'What happens to a key that comes back with another payload, as the worker that started last has it.';
comment on column oncely.consumers.registered_at is 'When a worker first started with it.';
comment on column oncely.consumers.changed_at is 'When something here last changed.';
comment on column oncely.consumers.changed_by is
    'Who changed it: the database''s session user, and the worker or user that it named.';
comment on column oncely.consumers.paused is
    'When it was paused, as far back as any memory reaches (3650 days), and is: the last range is open where the pause '
    'has no end yet.';

-- Holds a row for each consumer's batches to lock until they commit, in a table that no other session waits for.
create table oncely.turns (
    consumer text collate "C" not null,
    constraint turns_pkey primary key (consumer)
);
comment on table oncely.turns is
    'A row per consumer, which a batch locks while the consumer''s batches collide (oncely.take_turn).';
comment on column oncely.turns.consumer is 'The consumer.';

-- from functions/forgotten_before.sql
-- Extends a retention by pauses: a copy that comes in a pause waits until its end, so the key that recognises it waits,
-- too. Counts pause by pause: a pause that ended long ago does not hold back later decisions.
create or replace function oncely.forgotten_before(at timestamptz, retention interval, paused tstzmultirange)
returns timestamptz
language plpgsql immutable strict
set search_path = pg_catalog, pg_temp
as $$
declare
    -- In seconds: a day has 24 hours in every time zone. Between 0 and 1000 years: no stored row may make a collection
    -- fail.
    seconds constant double precision := least(greatest(extract(epoch from retention), 0), 31557600000);
    before timestamptz := at - make_interval(secs => seconds);
    -- Reads pauses from here on: a collection calls this for each key, and does not sort years of pauses each time.
    horizon timestamptz := at - make_interval(secs => 2 * seconds);
    span record;
begin
    if isempty(paused) then
        return before;
    end if;
    loop
        before := at - make_interval(secs => seconds);
        for span in
            select lower(p.pause) as began, upper(p.pause) as ended
            from unnest(paused * tstzmultirange(tstzrange(horizon, at))) as p (pause)
            order by lower(p.pause) desc
        loop
            exit when span.ended <= before;
            before := before - make_interval(secs => extract(epoch from span.ended - span.began)::double precision);
        end loop;
        -- A pause cut by the horizon moves the result beyond it, if it counts at all.
        exit when before > horizon or horizon <= lower(paused);
        horizon := at - make_interval(
            secs => 1 + 2 * extract(epoch from at - least(before, horizon))::double precision
        );
    end loop;
    return before;
end
$$;
comment on function oncely.forgotten_before is
    'Until when a memory that lasts so long reaches back: what was decided before may be collected. The time in which '
    'the consumer was paused does not count.';
revoke execute on function oncely.forgotten_before from public;

-- from functions/effective_retention.sql
-- Returns the retention in effect: after a reduction, earlier mirror entries live on for a while, and their keys must,
-- too. (In PL/pgSQL, like the next ones: called for each key, and SQL functions with a path are planned each time.)
create or replace function oncely.effective_retention(
    at timestamptz, retention interval, former_retention interval, former_until timestamptz
) returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return greatest(retention, case when former_until > at then former_retention end);
end
$$;
comment on function oncely.effective_retention is
    'By which retention the garbage collection goes at a time: the former, longer one until the last mirror entry is '
    'over that may have been written under it.';
revoke execute on function oncely.effective_retention from public;

-- from functions/tenant_retention.sql
-- Returns a tenant's retention, its own (oncely.tenant_limits) or its consumer's, longer or shorter. Computed on
-- demand, and not stored with the keys: so it counts for existing keys, and no lane has to know of it. A shorter one
-- never falls below the redelivery horizon or the lifetime of a mirror entry.
create or replace function oncely.tenant_retention(
    at timestamptz, of_consumer interval, redelivery_horizon interval, mirror_ttl interval, retention interval,
    former_retention interval, former_until timestamptz
) returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        -- The consumer is not registered: no key of it is collected.
        when of_consumer is null then null
        -- greatest ignores nulls.
        when former_until > at
            then greatest(of_consumer, retention, former_retention, redelivery_horizon, mirror_ttl)
        when retention is null then of_consumer
        else greatest(retention, redelivery_horizon, mirror_ttl)
    end;
end
$$;
comment on function oncely.tenant_retention is
    'By which retention the garbage collection goes for a tenant''s keys of a consumer, given that of the consumer '
    '(oncely.effective_retention), the tenant''s own and its former one (oncely.tenant_limits): its own, but never '
    'below the redelivery horizon and the longest mirror.ttl; after a change, until the last mirror entry of before is '
    'over, the longest of all.';
revoke execute on function oncely.tenant_retention from public;

-- from functions/register_consumer.sql
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

-- from functions/register_mirror_ttl.sql
-- Registers a relay's lifetime of mirror entries. Each relay has its own configuration, and registers before it writes
-- and every hour, so that the longest of those at work counts.
create or replace function oncely.register_mirror_ttl(ttl interval) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz;
begin
    ttl := justify_hours(
        oncely.checked_time('mirror.ttl', register_mirror_ttl.ttl, interval '0', interval '3650 days')
    );
    if exists (
        select from oncely.cell as c
        where c.mirror_ttl = register_mirror_ttl.ttl and c.mirror_ttl_until is null
    ) then
        return;
    end if;
    -- Takes turns with set_retention, which relies on this value.
    perform from oncely.cell for update;
    at := clock_timestamp();
    -- The longer one is over: the longest of the relays at work replaces it.
    update oncely.cell as c
    set mirror_ttl = greatest(c.mirror_ttl_next, register_mirror_ttl.ttl), mirror_ttl_until = null,
        mirror_ttl_next = null
    where c.mirror_ttl_until < at;
    update oncely.cell as c
    set mirror_ttl = register_mirror_ttl.ttl, mirror_ttl_until = null, mirror_ttl_next = null
    where c.mirror_ttl <= register_mirror_ttl.ttl;
    if not found then
        -- Entries of the longer lifetime live on until it is over, and a relay that has it writes some until it
        -- registers again.
        update oncely.cell as c
        set mirror_ttl_until = coalesce(c.mirror_ttl_until, at + c.mirror_ttl + interval '2 hours'),
            mirror_ttl_next = greatest(c.mirror_ttl_next, register_mirror_ttl.ttl);
    end if;
end
$$;
comment on function oncely.register_mirror_ttl is
    'Notes for how long a relay''s mirror entries live; a shorter one than is known counts when the entries of the '
    'longer one are over.';
revoke execute on function oncely.register_mirror_ttl from public;

-- from functions/set_retention.sql
create or replace function oncely.set_retention(
    consumer text, retention interval, redelivery_horizon interval, os_user text, reason text
) returns interval
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    known record;
    horizon interval;
    longest_entry interval;
    at timestamptz;
begin
    -- Takes turns with register_mirror_ttl: a relay not counted here has yet to read the value set here.
    select c.mirror_ttl into longest_entry from oncely.cell as c for update;
    select c.retention, c.redelivery_horizon, c.former_retention, c.former_until into known
    from oncely.consumers as c
    where c.consumer = set_retention.consumer
    for update;
    if not found then
        raise exception using errcode = 'ONC11',
            message = format('oncely: no worker of the consumer %s has started here', set_retention.consumer);
    end if;
    horizon := justify_hours(oncely.checked_time(
        'the redelivery horizon', coalesce(set_retention.redelivery_horizon, known.redelivery_horizon),
        interval '1 second', interval '3650 days'
    ));
    retention := justify_hours(oncely.checked_time(
        'the retention', set_retention.retention, interval '1 second', interval '3650 days'
    ));
    if set_retention.retention < horizon then
        raise exception using errcode = 'ONC11',
            message = format('oncely: the retention would be shorter than the redelivery horizon, %s', horizon),
            hint = 'A copy that may still come would not be recognised.';
    end if;
    if set_retention.retention < longest_entry then
        raise exception using errcode = 'ONC11',
            message = format('oncely: the retention would be shorter than mirror.ttl, %s', longest_entry),
            hint = 'A mirror entry would outlive its key: shorten mirror.ttl, restart the relays, and try again when '
                'as much time has passed as it was, and three hours.';
    end if;
    at := clock_timestamp();
    -- The collection uses the longest retention that entries may have been written under, until they are over: also
    -- those of a relay that has read its records and sees this a moment later.
    if set_retention.retention < known.retention and longest_entry > interval '0' then
        update oncely.consumers as c
        set former_retention = oncely.effective_retention(
                at, known.retention, known.former_retention, known.former_until
            ),
            former_until = at + longest_entry + interval '1 hour'
        where c.consumer = set_retention.consumer;
    end if;
    update oncely.consumers as c
    set retention = set_retention.retention, redelivery_horizon = horizon,
        longest_retention = greatest(c.longest_retention, set_retention.retention), changed_at = at,
        changed_by = concat(session_login, ' (', left(set_retention.os_user, 255), ')')
    where c.consumer = set_retention.consumer;
    perform oncely.record_action(
        '', 'set retention',
        jsonb_build_object(
            'consumer', set_retention.consumer, 'from', known.retention::text, 'to', set_retention.retention::text,
            'redelivery_horizon_from', known.redelivery_horizon::text, 'redelivery_horizon_to', horizon::text
        ), 1,
        set_retention.reason, set_retention.os_user
    );
    return known.retention;
end
$$;
comment on function oncely.set_retention is
    'Sets how long a consumer''s keys are remembered and, unless it is null, how old a copy may be that still comes; '
    'shorter too; recorded in operator_actions. Returns what the retention was.';
revoke execute on function oncely.set_retention from public;

-- end of functions
