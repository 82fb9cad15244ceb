-- Lists events, oldest first; with $9, a tenant's events behind that event, by id. A null parameter turns its filter
-- off. Omits the messages, which an auditor may not read.
select tenant as "tenant!", id as "id!", created_at as "created_at!", available_at as "available_at!", attempts as "attempts!", state as "state!",
    reply as "reply!", exchange as "exchange!", routing_key as "routing_key!", ordering_key, ordering_number, message_id, type as kind,
    correlation_id, reason, last_error
from oncely.list_events(
    of_tenant => $1, of_exchange => $2, of_routing_key => $3, of_ordering_key => $4, of_reason => $5, until => $6, of_ids => $7, of_state => $8,
    behind_id => $9, most => $10
)
