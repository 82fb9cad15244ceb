-- Lists events written since $1, in the order in which a session wrote them.
select e.id, e.tenant, e.exchange, e.routing_key, e.ordering_key, e.type as kind
from oncely.events as e
where e.created_at >= $1
order by e.created_at, e.id
