-- Returns a claim's retention. A claimant knows how old a copy may be, so a tenant's own retention lengthens the
-- claim's, and never shortens it. Security definer: callers read the limit through this function only.
create or replace function oncely.claimed_retention(tenant text, retention interval) returns interval
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
as $$
begin
    if retention is null then
        return null;
    end if;
    return greatest(
        retention, (select l.retention from oncely.tenant_limits as l where l.tenant = claimed_retention.tenant)
    );
end
$$;
comment on function oncely.claimed_retention is
    'How long a key is remembered that says so itself: as its claim says, or as its tenant does where that is longer.';
revoke execute on function oncely.claimed_retention from public;
