-- Returns the trace of each key's last run that took effect. Finds the key through the index on its hash, and compares
-- its consumer and tenant with the rows found.
select n.position as "position!", a.trace_id as "trace_id!"
from
    unnest($2::text[], $3::text[]) with ordinality as n (tenant, key, position)
cross join lateral (
    select r.trace_id
    from oncely.audit as r
    where hashtextextended(r.key, 0) = hashtextextended(n.key, 0)
        and r.key = n.key
        and oncely.in_group(r.tenant, $2)
        and r.tenant = n.tenant
        and r.consumer = $1
        and r.outcome in ('completed', 'refused')
    order by r.occurred_at desc
    limit 1
) as a
where a.trace_id is not null
