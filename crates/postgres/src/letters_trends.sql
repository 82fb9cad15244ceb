-- Counts the newest 100,000 letters by group and part of a span. A null parameter turns its filter off.
select consumer, failure_group,
    least(
        floor(extract(epoch from dead_lettered_at - $5) / extract(epoch from $6::timestamptz - $5) * $7::integer)::integer, $7 - 1
    ) as "part!",
    count(*) as "count!"
from (
    select consumer, failure_group, dead_lettered_at
    from oncely.dead_letters
    where dead_lettered_at >= $5
      and dead_lettered_at < $6
      and ($1::text is null or tenant = $1)
      and ($2::text is null or consumer = $2)
      and ($3::text is null or reason = $3)
      and ($4::text is null or failure_group = $4)
    order by dead_lettered_at desc
    limit 100000
) as d
group by 1, 2, 3
