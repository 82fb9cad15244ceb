-- Webhooks in tables that one would query. Run again, it changes nothing.
create schema if not exists webhooks;

-- Each message as it came. No unique constraint: Oncely sees to it that a redelivery adds no row.
create table if not exists webhooks.events (
    tenant text collate "C" not null,
    message_id text not null,
    source text,
    type text,
    actor text,
    occurred_at timestamptz not null,
    payload jsonb not null
);
create index if not exists events_of_a_tenant on webhooks.events (tenant, occurred_at);

-- Counters: what a handler that ran twice would get wrong.
create table if not exists webhooks.activity (
    tenant text collate "C" not null,
    day date not null,
    type text not null,
    events bigint not null,
    primary key (tenant, day, type)
);

create table if not exists webhooks.actors (
    tenant text collate "C" not null,
    actor text not null,
    events bigint not null,
    last_seen timestamptz not null,
    primary key (tenant, actor)
);

-- Who did it, where the usual sources say so.
create or replace function webhooks.actor_of(payload jsonb) returns text
language sql immutable
as $$
    select coalesce(
        payload #>> '{actor,login}', payload #>> '{sender,login}', payload ->> 'user_username', payload #>> '{user,username}',
        payload #>> '{actor,nickname}', payload #>> '{actor,name}', payload #>> '{customer,email}', payload #>> '{data,object,customer}'
    )
$$;

-- The whole batch in one statement, rows in the order of their primary keys, so that two batches can't wait for each other in a circle.
create or replace function webhooks.take_in(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    with fresh as (
        select m.tenant, m.key as message_id, m.headers ->> 'x-source' as source, coalesce(m.type, 'unknown') as type,
            webhooks.actor_of(m.payload) as actor,
            coalesce((m.headers ->> 'x-occurred-at')::timestamptz, m.published_at, now()) as occurred_at, m.payload
        from unnest(messages) as m
    ), kept as (
        insert into webhooks.events (tenant, message_id, source, type, actor, occurred_at, payload)
        select * from fresh
    ), counted as (
        insert into webhooks.activity as a (tenant, day, type, events)
        select tenant, (occurred_at at time zone 'UTC')::date, type, count(*) from fresh group by 1, 2, 3 order by 1, 2, 3
        on conflict (tenant, day, type) do update set events = a.events + excluded.events
    )
    insert into webhooks.actors as a (tenant, actor, events, last_seen)
    select tenant, actor, count(*), max(occurred_at) from fresh where actor is not null group by 1, 2 order by 1, 2
    on conflict (tenant, actor) do update
    set events = a.events + excluded.events, last_seen = greatest(a.last_seen, excluded.last_seen);

    return query select m.seq, null::jsonb from unnest(messages) as m;
end
$$;
