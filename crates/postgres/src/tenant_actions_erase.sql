-- Takes a tenant ($1) out of what people did: a pseudonym ($2) instead of its name; what was asked for, and notes, go. In the notes of
-- other actions the name is replaced where it stands as a word ($3: a pattern that finds it).
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
