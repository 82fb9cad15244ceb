-- Dead letters by what failed alike: of the newest 100,000 that match. Each filter is off where its parameter is null.
select consumer, failure_group, reason, error_code,
    (array_agg(detail order by dead_lettered_at desc))[1] as detail,
    count(*) filter (where state = 'waiting') as "waiting!",
    count(*) filter (where state = 'requeueing') as "requeueing!",
    count(*) filter (where state = 'requeued') as "requeued!",
    count(*) filter (where state = 'discarded') as "discarded!",
    count(*) filter (where state in ('waiting', 'requeueing') and generation > 1) as "came_back!",
    oncely.bounded(min(dead_lettered_at)) as "first_at!",
    oncely.bounded(max(dead_lettered_at)) as "last_at!"
from (
    select consumer, failure_group, reason, error_code, detail, state, generation, dead_lettered_at
    from oncely.dead_letters
    where ($1::text is null or tenant = $1)
      and ($2::text is null or consumer = $2)
      and ($3::text is null or queue = $3)
      and ($4::text is null or reason = $4)
      and ($5::text is null or failure_group = $5)
      and ($6::text is null or (hashtextextended(key, 0) = hashtextextended($6, 0) and key = $6))
      and ($7::timestamptz is null or dead_lettered_at >= $7)
      and ($8::timestamptz is null or dead_lettered_at < $8)
    order by dead_lettered_at desc
    limit 100000
) as d
group by consumer, failure_group, reason, error_code
order by count(*) filter (where state in ('waiting', 'requeueing')) desc, max(dead_lettered_at) desc
limit $9
