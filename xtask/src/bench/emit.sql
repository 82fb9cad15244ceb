-- $1 events for exchange $2 and routing key $3, of $4 ordering keys (0: without an order), as an application writes them. 300 bytes.
select count(oncely.emit(
    $2::text, $3::text,
    jsonb_build_object('payment', gen_random_uuid(), 'customer', 1000 + n % greatest($4, 1), 'amount', 100000000 + n,
        'currency', 'EUR', 'note', repeat('x', 179)),
    ordering_key => case when $4 > 0 then 'customer-' || (1000 + n % $4) end,
    tenant => 'shop'
))
from generate_series(1, $1) as n
