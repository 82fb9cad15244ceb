-- Locks the keys that were given up with these letters: in the order in which workers lock keys, and before the
-- letters, like workers. So no deadlock occurs, and no failure is recorded in between.
select i.key
from unnest($1::text[], $2::uuid[]) as l (tenant, id)
join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
join oncely.idempotency_keys as i on i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key
where oncely.in_group(d.tenant, $1) and oncely.in_group(i.tenant, $1) and i.status = 'FAILED'
order by i.tenant, i.consumer, i.key
for update of i
