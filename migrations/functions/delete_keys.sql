-- Deletes keys for logins without a right to delete: a key deleted too early is a message that runs again, and with
-- that right a login may lock the whole table. Uses the clock as far as it is explained (oncely.observe_clock). Keeps
-- keys that a run holds, and keys that may not be forgotten.
create or replace function oncely.delete_keys(places tid[], status oncely.key_status default null) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Planned as for a few places, so that many do not cause a scan of the table.
set plan_cache_mode = force_generic_plan
-- Looks into other tables for each key, which may be short when that is planned.
set enable_seqscan = off
as $$
declare
    at timestamptz;
    longest_entry interval;
    gone bigint;
begin
    select least(u.clock_seen_at, clock_timestamp()), e.mirror_ttl into at, longest_entry
    from oncely.maintenance as u
    cross join oncely.cell as e;
    delete from oncely.idempotency_keys as i
    where i.ctid = any (places)
        -- Rechecked for the new version of a row after a lock wait.
        and i.status = coalesce(delete_keys.status, i.status)
        and (i.owner is null or i.not_before <= clock_timestamp())
        and oncely.may_be_forgotten(
            i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before, i.expires_at,
            i.fencing_token, at,
            (
                select oncely.forgotten_before(
                    at,
                    coalesce(
                        i.expires_at - i.created_at,
                        oncely.tenant_retention(
                            at, oncely.effective_retention(at, c.retention, c.former_retention, c.former_until),
                            c.redelivery_horizon, longest_entry, l.retention, l.former_retention, l.former_until
                        )
                    ),
                    coalesce(c.paused, '{}')
                )
                from (values (i.consumer, i.tenant)) as k (consumer, tenant)
                left join oncely.consumers as c on c.consumer = k.consumer
                left join oncely.tenant_limits as l on l.tenant = k.tenant
            )
        );
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_keys is
    'Deletes the keys at these places of the table that may be forgotten (oncely.may_be_forgotten) and that no run '
    'holds; those of one status alone, where it is given. Returns how many that is. For the garbage collection.';
revoke execute on function oncely.delete_keys from public;
