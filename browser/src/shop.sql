-- A shop whose tills can be locked: what is in shop.locked fails until somebody unlocks it.
create schema shop;

create table shop.locked (key text collate "C" primary key);

-- Nothing stops a second effect of one message.
create table shop.payments (
    tenant text collate "C" not null,
    consumer text collate "C" not null,
    key text collate "C" not null,
    cents bigint
);

create function shop.pay(message oncely.message) returns jsonb language plpgsql as $$
begin
    if exists (select from shop.locked as l where l.key = message.key) then
        raise exception 'the till % does not open: payment ''%''', message.payload ->> 'till', message.key;
    end if;
    if message.payload ->> 'cents' = '0' then
        perform oncely.refuse('nothing to pay');
    end if;
    insert into shop.payments values (message.tenant, message.consumer, message.key, (message.payload ->> 'cents')::bigint);
    return jsonb_build_object('receipt', 'R-' || left(message.key, 40), 'cents', (message.payload ->> 'cents')::bigint);
end
$$;
