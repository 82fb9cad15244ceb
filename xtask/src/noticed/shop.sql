-- Two consumers' handlers. What is in shop.closed fails until somebody opens it again; '*' stands for every tenant.
create schema shop;

create table shop.closed (consumer text not null, tenant text not null);

create table shop.payments (tenant text collate "C" not null, key text collate "C" not null);
create table shop.emails (tenant text collate "C" not null, key text collate "C" not null);

create function shop.look(message oncely.message) returns void language plpgsql as $$
begin
    if exists (select from shop.closed as c where c.consumer = message.consumer and c.tenant in (message.tenant, '*')) then
        raise exception 'the till does not open';
    end if;
end
$$;

create function shop.pay(message oncely.message) returns jsonb language plpgsql as $$
begin
    perform shop.look(message);
    insert into shop.payments values (message.tenant, message.key);
    return null;
end
$$;

create function shop.mail(message oncely.message) returns jsonb language plpgsql as $$
begin
    perform shop.look(message);
    insert into shop.emails values (message.tenant, message.key);
    return null;
end
$$;
