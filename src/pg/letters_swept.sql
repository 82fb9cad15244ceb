-- A queue has been gone through: what was requeued or discarded before $2 has no copy there any more.
with gone as materialized (
    select tenant, id
    from oncely.dead_letters
    where queue = $1 and state in ('requeued', 'discarded') and updated_at < $2 and swept_at is null
    order by tenant, id
    for update
)
update oncely.dead_letters as d
set swept_at = $3
from gone as g
where d.tenant = g.tenant and d.id = g.id
