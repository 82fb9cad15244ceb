-- Returns the tenants that the session's user may see. A login that must not see rows must not plan over them:
-- estimates come from samples of all rows, so EXPLAIN tells a login with a right to a table its values and their
-- frequency, whatever the policies hide. So members of oncely_tenant_auditor have no right to a table with tenants'
-- rows. They read by functions (oncely.list_audit and its like), as do operators and auditors: EXPLAIN sees a function
-- with a fixed estimate. A session could still have the plans inside printed, so each function pins debug_print_plan.
create or replace function oncely.visible_tenants() returns text[]
language sql stable security definer
set search_path = pg_catalog, pg_temp
set debug_print_plan = off
as $$
    select case
        -- The schema's owner, and superusers, are members of every role.
        when pg_has_role(session_user, current_user, 'member') then null
        -- The narrower role wins over all other memberships.
        when pg_has_role(session_user, to_regrole('oncely_tenant_auditor'), 'member')
            then array(
                select r.tenant
                from oncely.rights as r
                where r.verb = 'read'
                    and (
                        r.login = session_user
                        or pg_has_role(session_user, to_regrole(quote_ident(r.login)), 'member')
                    )
            )
    end
$$;
comment on function oncely.visible_tenants is
    'Tenants whose rows the session''s user is shown by the functions that list rows: null, all; for a member of '
    'oncely_tenant_auditor those that it may read by oncely.rights.';
revoke execute on function oncely.visible_tenants from public;
