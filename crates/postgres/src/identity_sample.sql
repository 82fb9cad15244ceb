-- Counts decisions by consumer. The index on time finds the span; the limit bounds the rows read, even in a busy hour.
select consumer, count(*) as "decisions!",
    count(*) filter (where tenant = '' or key = '') as "without!",
    count(*) filter (where reason = 'key_conflict') as "conflicts!",
    count(*) filter (
        where case
            when key ~ '^[0-9]{10}([0-9]{3}){0,3}$'
                then abs(left(key, 10)::numeric - extract(epoch from occurred_at)) < 172800
            else key ~ '^20[0-9]{2}-[01][0-9]-[0-3][0-9][T ][0-2][0-9]:[0-5][0-9]'
        end
    ) as "times!",
    max(octet_length(key))::bigint as "longest!"
from (
    select consumer, tenant, key, reason, occurred_at
    from oncely.audit
    where occurred_at >= $1
    limit 10000
) as a
group by consumer
order by consumer
