-- What a tenant has begun in this database and not ended. psql --set tenant=acme --file unfinished.sql
select 'keys in progress' as unfinished, count(*) from oncely.idempotency_keys
where tenant = :'tenant' and status = 'IN_PROGRESS'
union all
select 'dead letters that wait for a decision', count(*) from oncely.dead_letters
where tenant = :'tenant' and state in ('waiting', 'requeueing')
union all
select 'events that are not published', count(*) from oncely.events
where tenant = :'tenant';
