-- Lists the first events of ordering keys, at most $3 of a key and $4 of all: heads first, of those the one that has
-- been due for the longest time, regardless of its tenant's name. One that failed is due later than those that were not
-- tried yet. Returns the position of each within its key, from 1.
select f.tenant as "tenant!", f.id as "id!", f.place as "place!"
from unnest($1::text[], $2::text[]) as k (tenant, ordering_key)
cross join lateral (
    select e.tenant, e.id, e.available_at, row_number() over (order by e.ordering_number) as place
    from oncely.events as e
    where e.tenant = k.tenant and e.ordering_key = k.ordering_key
    order by e.ordering_number
    limit $3
) as f
order by f.place, f.available_at, f.id
limit $4
