-- A handler that tells the world. The book includes it; a test runs it on what examples/tour/payments.sql makes.
create or replace function app.capture_and_tell(message oncely.message) returns jsonb
language plpgsql
as $$
begin
    insert into app.payments (tenant, order_id, amount)
    values (message.tenant, message.payload ->> 'order', (message.payload ->> 'amount')::numeric);
    -- ANCHOR: emit
    perform oncely.emit('payments', 'captured', jsonb_build_object('order', message.key), cause => message);
    -- ANCHOR_END: emit
    return null;
end
$$;
