set local search_path = pg_catalog, pg_temp;

-- Those that this migration added are the tables' that go with theirs; nothing else is known of them.
do $$
declare
    name text;
begin
    for name in
        select c.relname from pg_class as c join pg_constraint as k on k.conrelid = c.oid and k.conname = c.relname || '_times'
        where c.relnamespace = 'oncely'::regnamespace and not c.relispartition
          and c.relname not in ('idempotency_keys', 'outbox', 'audit', 'events', 'ordering_keys', 'dead_letters', 'operator_actions', 'rights')
    loop
        execute format('alter table oncely.%I drop constraint %I', name, name || '_times');
    end loop;
end
$$;
