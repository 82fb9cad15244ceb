-- Reads the consumer and the tenant's limits in a function: a condition on rows of one part of a table must name no
-- other table, on an engine that spreads tables over nodes.
create or replace function oncely.key_forgotten_before(tenant text, consumer text, own interval, at timestamptz)
returns timestamptz
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select oncely.forgotten_before(
            at,
            coalesce(
                own,
                oncely.tenant_retention(
                    at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until),
                    c.redelivery_horizon, e.mirror_ttl, l.retention, l.former_retention, l.former_until
                )
            ),
            coalesce(c.paused, '{}')
        )
        from oncely.cell as e
        left join oncely.consumers as c on c.consumer = key_forgotten_before.consumer
        left join oncely.tenant_limits as l on l.tenant = key_forgotten_before.tenant
        -- By its index: a scan where none is allowed looks so expensive that the statement is compiled for each key.
        where e.only_row
    );
end
$$;
comment on function oncely.key_forgotten_before is
    'oncely.forgotten_before for a key: by its own retention, its tenant''s or its consumer''s.';
revoke execute on function oncely.key_forgotten_before from public;
