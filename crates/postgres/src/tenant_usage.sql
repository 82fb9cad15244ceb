-- Lists the usage and the limits of tenants ($4: of one), up to $3, those with most bytes first, at $5; $1 and $2 are
-- the default limits.
with used as materialized (
    select u.tenant, u.letters, u.bytes, u.left_out, u.events, u.event_bytes
    from oncely.letter_usage as u
), grown as materialized (
    select s.tenant, sum(s.letters) as letters, sum(s.bytes) as bytes
    from oncely.letter_growth as s
    group by s.tenant
)
select t.tenant as "tenant!", least(coalesce(u.letters, 0) + coalesce(g.letters, 0), 1e18)::bigint as "letters!",
    least(coalesce(u.bytes, 0) + coalesce(g.bytes, 0), 1e18)::bigint as "bytes!", coalesce(u.left_out, 0) as "left_out!",
    coalesce(l.letters, $1) as "most_letters!", coalesce(l.letter_bytes, $2) as "most_bytes!",
    coalesce(u.events, 0) as "events!", coalesce(u.event_bytes, 0) as "event_bytes!",
    coalesce(l.events, e.tenant_events) as "most_events!",
    coalesce(l.event_bytes, e.tenant_event_bytes) as "most_event_bytes!",
    coalesce(l.letters, l.letter_bytes, l.events, l.event_bytes) is not null as "own_limit!",
    extract(epoch from l.retention)::float8 as retention, k.kept as "kept!: Json<Vec<EffectiveRetention>>"
from (
    select u.tenant from used as u
    union select l.tenant from oncely.tenant_limits as l
    union select g.tenant from grown as g
) as t
cross join oncely.cell as e
left join used as u on u.tenant = t.tenant
left join oncely.tenant_limits as l on l.tenant = t.tenant
left join grown as g on g.tenant = t.tenant
cross join lateral (
    select coalesce(
        jsonb_agg(
            jsonb_build_object(
                'consumer', r.consumer, 'retention', extract(epoch from r.retention), 'because', case
                    when l.former_until > $5 then 'former'
                    when r.retention = l.retention then 'tenant'
                    when r.retention = r.redelivery_horizon then 'redelivery_horizon'
                    else 'mirror_ttl'
                end
            ) order by r.consumer
        ),
        '[]'
    ) as kept
    from (
        select c.consumer, c.redelivery_horizon, oncely.tenant_retention(
            $5, oncely.effective_retention($5, c.retention, c.former_retention, c.former_until),
            c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
        ) as retention
        from oncely.consumers as c
        where l.retention is not null or l.former_until > $5
    ) as r
) as k
where $4::text is null or t.tenant = $4
order by coalesce(u.bytes, 0) + coalesce(g.bytes, 0) desc, t.tenant
limit $3
