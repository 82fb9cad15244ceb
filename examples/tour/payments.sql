-- The application's side of the tour: a table, and the function that the worker calls for each message, inside the
-- transaction that also records the key. Run again, it changes nothing.
create schema if not exists app;

create table if not exists app.payments (
    tenant text collate "C" not null,
    order_id text not null,
    amount numeric not null,
    captured_at timestamptz not null default now()
);

-- ANCHOR: handler
create or replace function app.capture_payment(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    if (message.payload ->> 'amount')::numeric <= 0 then
        -- Can never succeed: dead-lettered at once as handler_rejected.
        perform oncely.reject('the amount must be positive');
    end if;
    insert into app.payments (tenant, order_id, amount)
    values (message.tenant, message.payload ->> 'order', (message.payload ->> 'amount')::numeric);
    return jsonb_build_object('captured', message.payload ->> 'amount');
end
$$;
-- ANCHOR_END: handler
