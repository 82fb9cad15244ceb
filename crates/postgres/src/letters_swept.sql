-- Marks letters as swept: their copies were seen in their queue, and acknowledged.
with gone as materialized (
    select d.tenant, d.id
    from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
    join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
    where oncely.in_group(d.tenant, $1) and d.state in ('requeued', 'discarded') and d.swept_at is null
    order by d.tenant, d.id
    for update of d
)
update oncely.dead_letters as d
set swept_at = $4
from gone as g
where oncely.in_group(d.tenant, $1) and d.tenant = g.tenant and d.id = g.id
