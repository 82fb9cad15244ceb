-- Counts the letters of a plan, up to its limit, without the state of their keys, which costs most.
select count(*) as "count!"
from (
    select 1
    from oncely.dead_letters as d
    where d.state = any ($10)
      and ($1::text is null or d.tenant = $1)
      and ($2::text is null or d.consumer = $2)
      and ($3::text is null or d.queue = $3)
      and ($4::text is null or d.reason = $4)
      and ($5::text is null or d.failure_group = $5)
      and ($6::text is null or (hashtextextended(d.key, 0) = hashtextextended($6, 0) and d.key = $6))
      and ($7::timestamptz is null or d.dead_lettered_at >= $7)
      and ($8::timestamptz is null or d.dead_lettered_at < $8)
      and ($9::uuid[] is null or d.id = any ($9))
    limit $11
) as d
