-- The state of the tables. Reads statistics, sizes of files and one row of an index, and counts nothing. $1: retention in seconds.
with weeks as (
    select i.inhrelid as oid,
        case when c.relname ~ '^audit_[0-9]{8}$' then to_date(right(c.relname, 8), 'YYYYMMDD') end as day
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'oncely.audit'::regclass
),
stats as (
    select s.n_live_tup, s.n_dead_tup, s.n_tup_del, s.autovacuum_count,
        case
            when s.relid = 'oncely.idempotency_keys'::regclass then 'keys'
            when w.oid is not null then 'trail'
            else 'others'
        end as part
    from pg_stat_all_tables as s
    left join weeks as w on w.oid = s.relid
),
parts as (
    select part, sum(n_live_tup)::bigint as live, sum(n_dead_tup)::bigint as dead, sum(n_tup_del)::bigint as deleted,
        sum(autovacuum_count)::bigint as autovacuums
    from stats
    group by part
)
select
    pg_total_relation_size('oncely.idempotency_keys') as key_bytes,
    pg_table_size('oncely.idempotency_keys') as key_heap_bytes,
    pg_relation_size('oncely.idempotency_keys_pkey') as primary_key_bytes,
    (select deleted from parts where part = 'keys') as deleted_keys,
    (select coalesce(sum(pg_total_relation_size(oid)), 0)::bigint from weeks) as trail_bytes,
    (select live from parts where part = 'trail') as trail_rows,
    (select count(*) from weeks where day is not null) as weeks,
    (
        select count(*) from weeks, oncely.cell
        where day + 7 <= (clock_timestamp() - audit_floor) at time zone 'UTC'
    ) as overdue_weeks,
    (select count(*) from weeks where day > current_date) as weeks_ahead,
    coalesce((
        select greatest(extract(epoch from clock_timestamp() - k.completed_at)::double precision - $1, 0)
        from oncely.idempotency_keys as k
        where k.status = 'COMPLETED' and k.consumer = 'payments'
        order by k.completed_at
        limit 1
    ), 0) as overdue_seconds,
    (select jsonb_object_agg(part, dead) from parts) as dead,
    (select jsonb_object_agg(part, autovacuums) from parts) as autovacuums,
    w.wal_fpi as full_pages,
    c.redo_lsn::text as redo,
    clock_timestamp() as at
from pg_stat_wal as w
cross join pg_control_checkpoint() as c
