-- Deletes keys for logins without a right to delete: a key deleted too early is a message that runs again, and with
-- that right a login may lock the whole table. Uses the clock as far as it is explained (oncely.observe_clock). Keeps
-- keys that a run holds, and keys that may not be forgotten.
create or replace function oncely.delete_keys(
    places tid[], status oncely.key_status default null, unit text default ''
) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
-- Finds the keys by their places, and looks into other tables for each key, which may be short when that is planned.
set enable_seqscan = off
as $$
declare
    at timestamptz;
    database_time timestamptz := clock_timestamp();
    oldest_record timestamptz;
    gone bigint;
begin
    select least(u.clock_seen_at, database_time) into at from oncely.maintenance as u;
    -- The first entry of an index. A search for any record that is old enough was planned as a scan of the table, which
    -- is short and full of dead rows.
    select min(coalesce(q.completed_at, q.created_at)) into oldest_record from oncely.mirror_queue as q;
    -- The name of a table can't be a parameter; it is the catalogue's.
    execute format(
        $delete$
        delete from %s as i
        where i.ctid = any ($1)
            -- Rechecked for the new version of a row after a lock wait.
            and i.status = coalesce($2, i.status)
            and (i.owner is null or i.not_before <= $4)
            and oncely.may_be_forgotten(
                i.tenant, i.consumer, i.key, i.status, i.reason, i.created_at, i.completed_at, i.not_before,
                i.expires_at, i.fencing_token, $3,
                oncely.key_forgotten_before(i.tenant, i.consumer, i.expires_at - i.created_at, $3),
                $5
            )
        $delete$,
        oncely.unit_table(unit, 'idempotency_keys')
    ) using places, status, at, database_time, oldest_record;
    get diagnostics gone = row_count;
    return gone;
end
$$;
comment on function oncely.delete_keys is
    'Deletes the keys at these places of a unit''s table that may be forgotten (oncely.may_be_forgotten) and that no '
    'run holds; those of one status alone, where it is given. Returns how many that is. For the garbage collection.';
revoke execute on function oncely.delete_keys from public;
