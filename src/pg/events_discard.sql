-- Gives events up. One that a relay holds is being published, and is left alone.
with meant as materialized (
    select e.tenant, e.id
    from unnest($1::text[], $2::uuid[]) as m (tenant, id)
    join oncely.events as e on e.tenant = m.tenant and e.id = m.id
    where $3::text is null or e.state = $3
    for update of e skip locked
)
delete from oncely.events as e
using meant as m
where e.tenant = m.tenant and e.id = m.id
returning e.tenant, e.id
