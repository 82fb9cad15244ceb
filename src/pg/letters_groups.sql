-- Dead letters by what failed alike: of the newest 100,000 that match. Each filter is off where its parameter is null. Only the
-- groups that are told have their last letter looked at for its detail.
with groups as (
    select consumer, failure_group, reason, error_code,
        count(*) filter (where state = 'waiting') as waiting,
        count(*) filter (where state = 'requeueing') as requeueing,
        count(*) filter (where state = 'requeued') as requeued,
        count(*) filter (where state = 'discarded') as discarded,
        count(*) filter (where state in ('waiting', 'requeueing') and generation > 1) as came_back,
        min(dead_lettered_at) as first_at,
        max(dead_lettered_at) as last_at
    from (
        select consumer, failure_group, reason, error_code, state, generation, dead_lettered_at
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
)
select g.consumer as "consumer!", g.failure_group as "failure_group!", g.reason as "reason!", g.error_code,
    (
        select d.detail from oncely.dead_letters as d
        where d.dead_lettered_at = g.last_at and d.consumer = g.consumer and d.failure_group = g.failure_group
          and d.reason = g.reason and d.error_code is not distinct from g.error_code
          and ($1::text is null or d.tenant = $1)
        limit 1
    ) as detail,
    g.waiting as "waiting!", g.requeueing as "requeueing!", g.requeued as "requeued!", g.discarded as "discarded!",
    g.came_back as "came_back!", oncely.bounded(g.first_at) as "first_at!", oncely.bounded(g.last_at) as "last_at!"
from groups as g
order by g.waiting + g.requeueing desc, g.last_at desc
