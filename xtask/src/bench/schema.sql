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
