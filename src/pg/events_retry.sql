-- Makes events due now, as if they had never failed. One that a relay holds is being published, and is left alone.
with meant as materialized (
    select e.tenant, e.id
    from unnest($1::text[], $2::uuid[]) as m (tenant, id)
    join oncely.events as e on e.tenant = m.tenant and e.id = m.id
    where $3::text is null or e.state = $3
    for update of e skip locked
)
update oncely.events as e
set state = 'pending', attempts = 0, available_at = $4
from meant as m
where e.tenant = m.tenant and e.id = m.id
returning e.tenant, e.id
