-- Returns the existing forms of a handler. The batch form may be "returns setof oncely.result" or "returns table (…)".
select f.batch as "batch!", coalesce(pg_get_function_result(p.oid), 'nothing') as "returns!",
    case
        when f.batch then p.proretset and (p.prorettype = 'oncely.result'::regtype or p.prorettype = 'record'::regtype)
        else not p.proretset and p.prorettype = 'jsonb'::regtype
    end as "fits!",
    has_function_privilege(p.oid, 'execute') as "executable!", current_user::text as "login!",
    p.prokind = 'f' as "is_function!", p.provolatile = 'v' as "is_volatile!", o.rolname::text as "owner!",
    p.prosecdef and o.rolsuper as "runs_as_superuser!"
from (values (false, '(oncely.message)'), (true, '(oncely.message[])')) as f (batch, argument)
join pg_proc as p on p.oid = to_regprocedure($1 || f.argument)
join pg_roles as o on o.oid = p.proowner
