-- Returns a tenant's retention, its own (oncely.tenant_limits) or its consumer's, longer or shorter. Computed on
-- demand, and not stored with the keys: so it counts for existing keys, and no lane has to know of it. A shorter one
-- never falls below the redelivery horizon or the lifetime of a mirror entry.
create or replace function oncely.tenant_retention(
    at timestamptz, of_consumer interval, redelivery_horizon interval, mirror_ttl interval, retention interval,
    former_retention interval, former_until timestamptz
) returns interval
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    return case
        -- The consumer is not registered: no key of it is collected.
        when of_consumer is null then null
        -- greatest ignores nulls.
        when former_until > at
            then greatest(of_consumer, retention, former_retention, redelivery_horizon, mirror_ttl)
        when retention is null then of_consumer
        else greatest(retention, redelivery_horizon, mirror_ttl)
    end;
end
$$;
comment on function oncely.tenant_retention is
    'By which retention the garbage collection goes for a tenant''s keys of a consumer, given that of the consumer '
    '(oncely.effective_retention), the tenant''s own and its former one (oncely.tenant_limits): its own, but never '
    'below the redelivery horizon and the longest mirror.ttl; after a change, until the last mirror entry of before is '
    'over, the longest of all.';
revoke execute on function oncely.tenant_retention from public;
