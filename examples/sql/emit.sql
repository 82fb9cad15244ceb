-- An event in the transaction of what it tells. The book and the README include it; a test runs it.
create schema if not exists shop;
create table if not exists shop.orders (tenant text not null, id text not null, cents bigint not null, primary key (tenant, id));

-- ANCHOR: emit
begin;
insert into shop.orders (tenant, id, cents) values ('acme', 'order-1182', 500);
select oncely.emit('orders', 'order.created', jsonb_build_object('id', 'order-1182', 'cents', 500),
                   tenant => 'acme', ordering_key => 'order-1182');
commit;
-- ANCHOR_END: emit
