-- The business of both sides: one row per message.
create schema bench;
create table bench.payments (
    id bigserial primary key,
    tenant text not null,
    key text not null,
    customer integer not null,
    amount bigint not null,
    currency text not null,
    -- When the publisher sent it, in microseconds since 1970; 0 where the time is not measured.
    sent_at bigint not null
);
-- Rows that many messages update.
create table bench.stock (
    sku integer primary key,
    sold bigint not null default 0
);
insert into bench.stock (sku) select generate_series(0, 99);
