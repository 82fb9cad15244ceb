-- $1 events of type $2 with the payload of ours, as the crate's PostgresWriter writes them.
insert into outbox_events (id, event_type, payload, status, created_at, locked_until)
select gen_random_uuid(), $2,
    jsonb_build_object('payment', gen_random_uuid(), 'customer', 1000, 'amount', 100000000 + n, 'currency', 'EUR',
        'note', repeat('x', 179)),
    'Pending', now(), 'epoch'
from generate_series(1, $1) as n
