-- Handlers as users write them: one business row per message.
create function bench.capture_payments(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
    select m.tenant, m.key, (m.payload ->> 'customer')::integer, (m.payload ->> 'amount')::bigint, m.payload ->> 'currency',
        (m.payload ->> 'sent_at')::bigint
    from unnest(messages) as m;
    return query select m.seq, null::jsonb from unnest(messages) as m;
end
$$;

create function bench.capture_payment(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
    values (message.tenant, message.key, (message.payload ->> 'customer')::integer, (message.payload ->> 'amount')::bigint,
        message.payload ->> 'currency', (message.payload ->> 'sent_at')::bigint);
    return null;
end
$$;

-- The batch form with a rule of the business in it.
create function bench.capture_valid_payments(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    perform oncely.reject('the amount must be positive') from unnest(messages) as m where (m.payload ->> 'amount')::bigint <= 0;
    return query select * from bench.capture_payments(messages);
end
$$;

-- The batch form with a branch that nobody has deployed.
create function bench.capture_by_branch(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    if exists (select from unnest(messages) as m where (m.payload ->> 'amount')::bigint <= 0) then
        execute 'insert into bench.refunds values (1)';
    end if;
    return query select * from bench.capture_payments(messages);
end
$$;
