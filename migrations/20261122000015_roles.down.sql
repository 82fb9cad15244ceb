set local search_path = pg_catalog, pg_temp;

-- Removes grants only. The roles stay: they belong to the server, and another database may use them.
do $$
declare
    role text;
    relation text;
begin
    for role in
        select rolname from pg_roles
        where rolname in (
            'oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor', 'oncely_tenant_auditor',
            'oncely_emitter', 'oncely_consumer'
        )
    loop
        execute format('revoke all on all tables in schema oncely from %I', role);
        execute format('revoke all on all functions in schema oncely from %I', role);
        execute format('revoke all on schema oncely from %I', role);
    end loop;
    for relation in
        select relname from pg_class
        where relnamespace = 'oncely'::regnamespace and relrowsecurity
    loop
        execute format('drop policy if exists rows_of_all on oncely.%I', relation);
        execute format('alter table oncely.%I disable row level security', relation);
    end loop;
end
$$;

drop policy if exists keys_locked_by_operators on oncely.idempotency_keys;
drop policy if exists keys_locked_by_relays on oncely.idempotency_keys;
drop policy if exists keys_worked on oncely.idempotency_keys;
drop policy if exists keys_claimed on oncely.idempotency_keys;
