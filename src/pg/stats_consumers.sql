select s.consumer, date_bin($2, s.at, timestamptz 'epoch') as "at!", sum(s.delivered)::bigint as "delivered!",
    sum(s.completed)::bigint as "completed!", sum(s.refused)::bigint as "refused!",
    sum(s.duplicates)::bigint as "duplicates!", sum(s.retried)::bigint as "retried!",
    sum(s.postponed)::bigint as "postponed!", sum(s.dead_lettered)::bigint as "dead_lettered!",
    sum(s.fallbacks)::bigint as "fallbacks!", sum(s.outages)::bigint as "outages!",
    array[
        sum(s.durations[1]), sum(s.durations[2]), sum(s.durations[3]), sum(s.durations[4]),
        sum(s.durations[5]), sum(s.durations[6]), sum(s.durations[7]), sum(s.durations[8]),
        sum(s.durations[9]), sum(s.durations[10]), sum(s.durations[11]), sum(s.durations[12]),
        sum(s.durations[13]), sum(s.durations[14]), sum(s.durations[15]), sum(s.durations[16]),
        sum(s.durations[17]), sum(s.durations[18]), sum(s.durations[19]), sum(s.durations[20])
    ]::bigint[] as "durations!"
from oncely.stats as s
where s.at >= $1
group by 2, s.consumer
order by 2, s.consumer
