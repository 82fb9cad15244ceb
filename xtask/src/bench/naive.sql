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
