-- The baseline's trail and outbox.
create table audit (
    id bigserial primary key,
    scope text not null,
    key text not null,
    consumer text not null,
    outcome text not null,
    occurred_at timestamptz not null default now()
);
create table outbox (
    id bigserial primary key,
    scope text not null,
    event jsonb not null,
    created_at timestamptz not null default now()
);
-- Events in an order, as an outbox with numbers writes them.
create table ordering (
    key integer primary key,
    last bigint not null default 0
);
insert into ordering (key) select generate_series(0, 14);
create table events (
    ordering_key integer not null,
    number bigint not null,
    event jsonb not null,
    created_at timestamptz not null default now(),
    primary key (ordering_key, number)
);
