-- Payments, and the messages that have one.
select count(*) as payments, count(distinct (tenant, key)) as paid from bench.payments
