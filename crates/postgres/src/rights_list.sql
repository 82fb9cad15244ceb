-- Lists rights, by login. A null parameter turns its filter off.
select r.login, r.verb, r.object, r.tenant, oncely.bounded(r.granted_at) as "granted_at!", r.granted_by,
    to_regrole(quote_ident(r.login)) is not null as "login_exists!",
    coalesce(pg_has_role(
        to_regrole(quote_ident(r.login)),
        to_regrole(
            case r.verb when 'emit' then 'oncely_emitter' when 'read' then 'oncely_tenant_auditor' else 'oncely_consumer' end
        ),
        'member'
    ), false) as "has_role!"
from oncely.rights as r
where ($1::text is null or r.login = $1)
  and ($2::text is null or r.verb = $2)
  and ($3::text is null or r.object = $3)
  and ($4::text is null or r.tenant = $4)
order by r.login, r.verb, r.object, r.tenant
