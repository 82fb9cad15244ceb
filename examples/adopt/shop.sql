-- The shop of examples/adopt/old_consumer.py: what it writes, and where it notes what it has processed.
create schema if not exists shop;
create table if not exists shop.effects (tenant text not null, order_id text not null, cents bigint not null, writer text not null);
create table if not exists shop.processed (
    tenant text not null,
    message_id text not null,
    processed_at timestamptz not null,
    primary key (tenant, message_id)
);

-- What it did to PostgreSQL, as a handler. The table of processed messages is Oncely's business now.
create or replace function shop.handle_order(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    insert into shop.effects (tenant, order_id, cents, writer)
    values (message.tenant, message.payload ->> 'order', (message.payload ->> 'cents')::bigint, 'oncely');
    return null;
end
$$;
