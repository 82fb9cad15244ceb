-- Locks the letters that are still being requeued, so that a discard of them waits, or is visible here.
select d.tenant, d.id, d.generation
from unnest($1::text[], $2::uuid[], $3::integer[]) as l (tenant, id, generation)
join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id and d.generation = l.generation
where oncely.in_group(d.tenant, $1) and d.state = 'requeueing'
order by d.tenant, d.id
for no key update of d
