-- Sums consumers' stats by span: numeric, and capped at a span's limit, so that no row makes the query fail.
select s.consumer, date_bin($2, s.at, timestamptz 'epoch') as "at!",
    least(sum(s.delivered), 1000000000000)::bigint as "delivered!",
    least(sum(s.completed), 1000000000000)::bigint as "completed!",
    least(sum(s.refused), 1000000000000)::bigint as "refused!",
    least(sum(s.duplicates), 1000000000000)::bigint as "duplicates!",
    least(sum(s.retried), 1000000000000)::bigint as "retried!",
    least(sum(s.postponed), 1000000000000)::bigint as "postponed!",
    least(sum(s.dead_lettered), 1000000000000)::bigint as "dead_lettered!",
    least(sum(s.fallbacks), 1000000000000)::bigint as "fallbacks!",
    least(sum(s.outages), 1000000000000)::bigint as "outages!",
    array[
        least(sum(s.durations[1]), 1000000000000), least(sum(s.durations[2]), 1000000000000),
        least(sum(s.durations[3]), 1000000000000), least(sum(s.durations[4]), 1000000000000),
        least(sum(s.durations[5]), 1000000000000), least(sum(s.durations[6]), 1000000000000),
        least(sum(s.durations[7]), 1000000000000), least(sum(s.durations[8]), 1000000000000),
        least(sum(s.durations[9]), 1000000000000), least(sum(s.durations[10]), 1000000000000),
        least(sum(s.durations[11]), 1000000000000), least(sum(s.durations[12]), 1000000000000),
        least(sum(s.durations[13]), 1000000000000), least(sum(s.durations[14]), 1000000000000),
        least(sum(s.durations[15]), 1000000000000), least(sum(s.durations[16]), 1000000000000),
        least(sum(s.durations[17]), 1000000000000), least(sum(s.durations[18]), 1000000000000),
        least(sum(s.durations[19]), 1000000000000), least(sum(s.durations[20]), 1000000000000)
    ]::bigint[] as "durations!"
from oncely.stats as s
where s.at >= $1
group by 2, s.consumer
order by 2, s.consumer
