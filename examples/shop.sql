-- The web shop of the examples in Python, Node and Rust. Run again, it changes nothing.
create schema if not exists shop;

create table if not exists shop.orders (
    tenant text collate "C" not null,
    id text not null,
    cents bigint not null,
    primary key (tenant, id)
);

-- No unique constraint: that there is one invoice an order is the consumer's and Oncely's work.
create table if not exists shop.invoices (
    tenant text collate "C" not null,
    order_id text not null,
    cents bigint not null
);

-- The books of a payment provider, as it were: elsewhere, and in no transaction of ours.
create table if not exists shop.provider_books (
    id bigint generated always as identity,
    idempotency_key text primary key,
    order_id text not null,
    calls integer not null default 1
);

create table if not exists shop.payments (
    tenant text collate "C" not null,
    order_id text not null,
    charge jsonb not null
);

-- The answer to a request: the worker calls it, and the relay takes what it returns to the requester's queue.
create or replace function shop.quote(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    if (message.payload ->> 'pieces')::integer <= 0 then
        perform oncely.reject('pieces must be positive');
    end if;
    return jsonb_build_object('cents', (message.payload ->> 'pieces')::integer * 250);
end
$$;
