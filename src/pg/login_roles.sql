-- Which of Oncely's roles the login has.
select rolname::text as "role!"
from pg_roles
where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
    and pg_has_role(current_user, oid, 'member')
