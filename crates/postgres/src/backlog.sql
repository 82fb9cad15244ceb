select
    (select count(*) from (select 1 from oncely.mirror_queue limit 10000) as m) as "mirror_records!",
    (select oncely.bounded(min(created_at)) from oncely.mirror_queue) as oldest_mirror_record,
    (
        select count(*)
        from (
            select 1 from oncely.events where state = 'pending' and available_at <= $1 limit 10000
        ) as e
    ) as "due_events!",
    (
        select oncely.bounded(created_at) from oncely.events
        where state = 'pending' and available_at <= $1
        order by created_at
        limit 1
    ) as oldest_due_event,
    (select count(*) from (select 1 from oncely.events where state = 'parked' limit 10000) as e) as "parked_events!",
    (select count(*) from (select 1 from oncely.letter_usage where left_out > 0 limit 10000) as u) as "over_quota!",
    coalesce(
        (select n_live_tup from pg_stat_all_tables where relid = 'oncely.idempotency_keys'::regclass), 0
    ) as "keys!",
    (
        select count(*) from (select 1 from oncely.idempotency_keys where status = 'IN_PROGRESS' limit 10000) as k
    ) as "keys_in_progress!",
    (
        select count(*) from (select 1 from oncely.idempotency_keys where status = 'FAILED' limit 10000) as k
    ) as "keys_failed!",
    (
        select to_date(max(right(c.relname, 8)), 'YYYYMMDD')::timestamp at time zone 'UTC'
        from pg_inherits as i
        join pg_class as c on c.oid = i.inhrelid
        where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'
    ) as last_partition,
    (
        select min(a.xact_start) from pg_stat_get_activity(null) as a
        where a.backend_xmin is not null and a.backend_type = 'client backend' and a.pid <> pg_backend_pid()
    ) as oldest_transaction
