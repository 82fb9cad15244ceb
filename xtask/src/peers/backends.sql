-- Sessions of this database but this one: each adds its counts to the statistics when it ends.
select count(*)
from pg_stat_activity
where datname = current_database() and backend_type = 'client backend' and pid <> pg_backend_pid()
