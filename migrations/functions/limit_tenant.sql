create or replace function oncely.limit_tenant(
    tenant text, letters bigint, letter_bytes bigint, os_user text, reason text
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
begin
    if limit_tenant.letters < 0 or limit_tenant.letter_bytes < 0 then
        raise exception using errcode = 'ONC11', message = 'oncely: a limit is not below 0';
    end if;
    insert into oncely.tenant_limits as l (tenant, letters, letter_bytes, changed_at, changed_by)
    values (
        limit_tenant.tenant, limit_tenant.letters, limit_tenant.letter_bytes, at,
        concat(session_login, ' (', left(limit_tenant.os_user, 255), ')')
    )
    on conflict (tenant) do update
    set letters = excluded.letters, letter_bytes = excluded.letter_bytes, changed_at = excluded.changed_at,
        changed_by = excluded.changed_by;
    delete from oncely.tenant_limits as l
    where l.tenant = limit_tenant.tenant and l.letters is null and l.letter_bytes is null and l.events is null
        and l.event_bytes is null and l.longest_retention is null;
    perform oncely.record_action(
        limit_tenant.tenant, 'limit tenant',
        jsonb_build_object('letters', limit_tenant.letters, 'letter_bytes', limit_tenant.letter_bytes), 1,
        limit_tenant.reason, limit_tenant.os_user
    );
end
$$;
comment on function oncely.limit_tenant is
    'Says how much of a tenant''s dead letters may be stored; null for what the configuration says. Recorded in '
    'operator_actions.';
revoke execute on function oncely.limit_tenant from public;
