-- Counts the rows that this session has changed, by table. Names its temporary schema without the number.
select s.relid::bigint as "id!", case when s.schemaname like 'pg\_temp\_%' then 'pg_temp' else s.schemaname end as "schema!",
    s.relname as "table!", s.n_tup_ins as "inserted!", s.n_tup_upd as "updated!", s.n_tup_del as "deleted!"
from pg_catalog.pg_stat_xact_user_tables as s
where s.n_tup_ins > 0 or s.n_tup_upd > 0 or s.n_tup_del > 0
order by 2, 3
