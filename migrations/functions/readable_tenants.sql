-- Returns the tenants that the session's user may read; called once a statement by the policies of tenants' tables.
create or replace function oncely.readable_tenants() returns setof text
language sql stable security definer rows 10
set search_path = pg_catalog, pg_temp
set debug_print_plan = off
as $$
    select r.tenant
    from oncely.rights as r
    where r.verb = 'read'
      and (r.login = session_user or pg_has_role(session_user, to_regrole(quote_ident(r.login)), 'member'))
$$;
comment on function oncely.readable_tenants is
    'Tenants whose rows the session''s user may read as a member of oncely_tenant_auditor.';
revoke execute on function oncely.readable_tenants from public;
