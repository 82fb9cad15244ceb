-- Replaces a tenant's name ($1) in operators' actions about it with a pseudonym ($2), and removes their filters and
-- notes. Writes new rows: a row's tenant says where an engine that spreads tables over nodes keeps it.
with gone as (
    delete from oncely.operator_actions as p
    where p.tenant = $1
    returning p.id, p.occurred_at, p.actor, p.verb, p.count
)
insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
select $2, g.id, g.occurred_at, g.actor, g.verb, jsonb_build_object('erased', $2::text), g.count, null
from gone as g
