-- Lists Oncely's existing roles, and whether the login has them: as a member, or as (a member of) the owner of the
-- schema.
select r.rolname::text as "role!", current_user::text as "login!",
    pg_has_role(current_user, r.oid, 'member')
        or coalesce(pg_has_role(current_user, n.nspowner, 'member'), false) as "granted!"
from pg_roles as r
left join pg_namespace as n on n.nspname = 'oncely'
where r.rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
order by r.rolname
