-- For a peer that may do a message's work twice: the payment's own key keeps it once.
create unique index payments_key on bench.payments (tenant, key);
