-- The SQL protocol: claim, work, complete in one transaction. The book and the README include it; a test runs it.
create schema if not exists shop;
create table if not exists shop.invoices (tenant text not null, order_id text not null, cents bigint not null);

-- ANCHOR: claim
begin;
select outcome, attempt, response
from oncely.claim('acme', 'invoices', 'order-1182', sha256('{"cents": 500}'));
-- granted: do the work here, in this transaction
insert into shop.invoices (tenant, order_id, cents) values ('acme', 'order-1182', 500);
select oncely.complete('acme', 'invoices', 'order-1182', '{"invoice": 7}');
commit;                                              -- and only when this has answered: acknowledge
-- ANCHOR_END: claim
