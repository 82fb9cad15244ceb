-- Returns for each consumer ($1), in their order, the time of its last completion and the number of its failing keys,
-- up to 10,000.
select c.consumer as "consumer!",
    (
        select oncely.bounded(max(i.completed_at)) from oncely.idempotency_keys as i
        where i.status = 'COMPLETED' and i.consumer = c.consumer
    ) as completed_at,
    (
        select count(*)
        from (
            select 1 from oncely.idempotency_keys as i
            where i.status = 'IN_PROGRESS' and i.consumer = c.consumer and i.attempts > 0
            limit 10000
        ) as f
    ) as "failing!"
from unnest($1::text[]) with ordinality as c (consumer, place)
order by c.place
