-- Takes letters from one of some states to another, each only in the generation that was meant: one that has come back
-- since is another case.
with meant as materialized (
    select d.tenant, d.id
    from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
    join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
    where d.state = any ($4)
    order by d.tenant, d.id
    for update of d
)
update oncely.dead_letters as d
set state = $5, updated_at = $6::timestamptz,
    -- No dead-letter queue has a copy of what a client stored.
    swept_at = case when d.from_client and $5 in ('requeued', 'discarded') then $6::timestamptz end
from meant as m
where d.tenant = m.tenant and d.id = m.id
returning d.tenant, d.id, d.generation
