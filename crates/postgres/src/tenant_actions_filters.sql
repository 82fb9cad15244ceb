-- Removes filters of operators' actions that name a tenant ($1); $2 is its pseudonym.
update oncely.operator_actions as p
set filter = jsonb_build_object('erased', $2::text)
where jsonb_path_exists(p.filter, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
