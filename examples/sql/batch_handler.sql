-- The batch form of the tour's handler. The book includes it; a test runs it on what examples/tour/payments.sql makes.
-- ANCHOR: handler
create or replace function app.capture_payments(messages oncely.message[]) returns setof oncely.result
language plpgsql
as $$
begin
    insert into app.payments (tenant, order_id, amount)
    select m.tenant, m.payload ->> 'order', (m.payload ->> 'amount')::numeric
    from unnest(messages) as m;
    return query
    select m.seq, jsonb_build_object('captured', m.payload ->> 'amount')
    from unnest(messages) as m;
end
$$;
-- ANCHOR_END: handler
