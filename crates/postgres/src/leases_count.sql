-- Counts held keys by consumer, each up to 10,000. Jumps from one consumer to the next by the index, so that one with
-- many keys hides no other.
with recursive names as (
    (
        select i.consumer from oncely.idempotency_keys as i
        where i.owner is not null order by i.consumer limit 1
    )
    union all
    select (
        select i.consumer from oncely.idempotency_keys as i
        where i.owner is not null and i.consumer > n.consumer order by i.consumer limit 1
    )
    from names as n
    where n.consumer is not null
)
select n.consumer as "consumer!", count(*) as "held!",
    count(*) filter (where h.not_before <= $1) as "over!",
    oncely.bounded(to_timestamp(min(h.fencing_token) / 1000000.0)) as "oldest!",
    oncely.bounded(min(h.not_before)) as "first_end!"
from names as n
cross join lateral (
    select i.fencing_token, i.not_before
    from oncely.idempotency_keys as i
    where i.owner is not null and i.consumer = n.consumer
    order by i.fencing_token
    limit 10000
) as h
group by n.consumer
order by n.consumer
