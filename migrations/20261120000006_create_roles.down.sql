-- The roles stay: they belong to the server, and another database may use them. Their grants here go.
do $$
declare
    role text;
begin
    for role in
        select rolname from pg_roles where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
    loop
        execute format('revoke all on all tables in schema oncely from %I', role);
        execute format('revoke all (only_row, name, history_id) on oncely.cell from %I', role);
        execute format('revoke all on all functions in schema oncely from %I', role);
        execute format('revoke all on schema oncely from %I', role);
    end loop;
end
$$;
