-- Replaces a tenant's name by a pseudonym ($2) in notes of operators' actions where it is a whole word ($1: a pattern
-- for it).
update oncely.operator_actions as p
set reason = regexp_replace(p.reason, $1, $2, 'g')
where p.reason ~ $1
