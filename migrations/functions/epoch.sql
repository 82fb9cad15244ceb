-- Combines four values: databases of one server share the system identifier, a promoted standby continues it on another
-- timeline, and a restored copy may share all three (with the oid), but gets a new history id.
create or replace function oncely.epoch() returns text
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
begin
    return (
        select s.system_identifier::text
            || '-' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8)
            || '-' || d.oid::text
            || '-' || c.history_id::text
        from pg_control_system() as s
        cross join oncely.cell as c
        join pg_database as d on d.datname = current_database()
    );
end
$$;
comment on function oncely.epoch is
    'The epoch that a row belongs to: system identifier, timeline, database oid and history id. Fails on a '
    'standby.';
