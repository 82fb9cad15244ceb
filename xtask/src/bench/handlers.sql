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

-- The same, and the payments of every tenth customer are announced.
create function bench.capture_and_announce(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    perform oncely.emit(
        '', 'captured', jsonb_build_object('event', 'captured', 'key', m.key, 'amount', m.payload -> 'amount'),
        message_id => m.key, tenant => m.tenant
    )
    from unnest(messages) as m
    where (m.payload ->> 'customer')::integer % 10 = 0;
    return query select * from bench.capture_valid_payments(messages);
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

-- Handlers on hot rows (`hot_...`); what the baseline does is in bench/src/hot.rs.
create function bench.sell(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    update bench.stock set sold = sold + 1
    where sku = (message.payload ->> 'customer')::integer % 15 and (message.payload ->> 'amount')::bigint > 0;
    if not found then
        perform oncely.refuse('out of stock');
    end if;
    return bench.capture_payment(message);
end
$$;

create function bench.count_one(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    update bench.stock set sold = sold + 1 where sku = 0;
    return bench.capture_payment(message);
end
$$;

create function bench.move_two(message oncely.message) returns jsonb
language plpgsql
as $$
declare
    source integer := (message.payload ->> 'customer')::integer % 100;
    target integer := (message.payload ->> 'amount')::bigint % 100;
begin
    update bench.stock set sold = sold + 1 where sku = source;
    update bench.stock set sold = sold + 1 where sku = case when target = source then (target + 1) % 100 else target end;
    return bench.capture_payment(message);
end
$$;

-- In the order of the messages, as a batch function is mostly written.
create function bench.sell_batch(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
declare
    message oncely.message;
begin
    foreach message in array messages loop
        update bench.stock set sold = sold + 1 where sku = (message.payload ->> 'customer')::integer % 15;
    end loop;
    return query select * from bench.capture_payments(messages);
end
$$;

create function bench.capture_and_emit(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    perform oncely.emit(
        '', 'nowhere', jsonb_build_object('event', 'captured', 'key', message.key, 'amount', message.payload -> 'amount'),
        ordering_key => 'customer-' || (message.payload ->> 'customer')::integer % 15, tenant => message.tenant
    );
    return bench.capture_payment(message);
end
$$;
