-- A shop's books, as independent judge: every payment must leave exactly two entries, and every balance must be the sum
-- of its entries. No unique constraint would stop a second effect: doubling must show, not fail.
create schema shop;

create table shop.entries (
    tenant text collate "C" not null,
    payment text collate "C" not null,
    account text collate "C" not null,
    amount bigint not null
);
create index entries_payment on shop.entries (tenant, payment);

create table shop.accounts (
    tenant text collate "C" not null,
    account text collate "C" not null,
    balance bigint not null,
    primary key (tenant, account)
);

-- The handler of the demo: captures a batch of payments. Accounts are updated in their order, so that two batches wait for
-- each other in one direction only.
create function shop.capture_payments(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    insert into shop.entries (tenant, payment, account, amount)
    select m.tenant, m.key, e.account, e.amount
    from unnest(messages) as m
    cross join lateral (
        values
            ('customer:' || (m.payload ->> 'customer'), -(m.payload ->> 'amount')::bigint),
            ('revenue', (m.payload ->> 'amount')::bigint)
    ) as e (account, amount);

    insert into shop.accounts as a (tenant, account, balance)
    select m.tenant, e.account, sum(e.amount)
    from unnest(messages) as m
    cross join lateral (
        values
            ('customer:' || (m.payload ->> 'customer'), -(m.payload ->> 'amount')::bigint),
            ('revenue', (m.payload ->> 'amount')::bigint)
    ) as e (account, amount)
    group by m.tenant, e.account
    order by m.tenant, e.account
    on conflict (tenant, account) do update set balance = a.balance + excluded.balance;

    return query
    select m.seq, jsonb_build_object('captured', (m.payload ->> 'amount')::bigint)
    from unnest(messages) as m;
end
$$;
