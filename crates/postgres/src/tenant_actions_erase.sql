-- Erases a tenant ($1) from operators' actions: replaces its name with a pseudonym ($2), and removes filters and notes.
-- In the notes of other actions, replaces the name where it is a whole word ($3: a pattern for it).
update oncely.operator_actions as p
set tenant = case when p.tenant = $1 then $2 else p.tenant end,
    filter = case
        when p.tenant = $1
            or jsonb_path_exists(p.filter, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
            then jsonb_build_object('erased', $2::text)
        else p.filter
    end,
    reason = case when p.tenant = $1 then null else regexp_replace(p.reason, $3, $2, 'g') end
where p.tenant = $1
    or jsonb_path_exists(p.filter, '$.** ? (@ == $tenant)', jsonb_build_object('tenant', $1::text))
    or p.reason ~ $3
