-- Dead tuples and bytes that a run has left in its database.
select coalesce(sum(n_dead_tup), 0)::bigint as dead_tuples, pg_database_size(current_database()) as bytes
from pg_stat_user_tables
