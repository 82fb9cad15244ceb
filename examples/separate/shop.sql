-- A shop whose tenants are divided over databases. Each database lists the tenants that it serves.
create schema if not exists shop;

create table if not exists shop.tenants (tenant text collate "C" primary key);

create table if not exists shop.payments (
    tenant text collate "C" not null,
    id text not null,
    cents bigint not null
);

-- ANCHOR: handler
create or replace function shop.pay(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    -- Locked until the commit: a tenant leaves when its last payment is committed, and no payment follows.
    perform from shop.tenants as t where t.tenant = message.tenant for share;
    if not found then
        perform oncely.reject('this database does not serve the tenant');
    end if;
    insert into shop.payments (tenant, id, cents)
    values (message.tenant, message.key, (message.payload ->> 'cents')::bigint);
    return jsonb_build_object('paid', message.payload -> 'cents');
end
$$;
-- ANCHOR_END: handler
