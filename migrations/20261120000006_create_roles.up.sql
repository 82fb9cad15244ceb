-- Least grants for each process. The roles are groups without login: grant them to the users that your processes log in as.
do $$
declare
    role text;
begin
    foreach role in array array['oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor'] loop
        begin
            -- Roles belong to the server, databases do not: a second cell, or a test beside this one, finds them made.
            execute format('create role %I nologin', role);
        exception
            when duplicate_object or unique_violation then
                null;
            when insufficient_privilege then
                raise notice 'role % not created: the migrating user may not create roles', role;
        end;
        if not exists (select from pg_roles where rolname = role) then
            continue;
        end if;
        execute format('grant usage on schema oncely to %I', role);
        execute format('grant execute on function oncely.epoch(), oncely.bucket(text) to %I', role);
        execute format('grant select (only_row, name, history_id) on oncely.cell to %I', role);
        -- An sqlx-cli without sqlx.toml support keeps its list elsewhere.
        if to_regclass('oncely._sqlx_migrations') is not null then
            execute format('grant select on oncely._sqlx_migrations to %I', role);
        end if;
        case role
            when 'oncely_worker' then
                execute format('grant select on oncely.cell to %I', role);
                execute format('grant select, insert, update on oncely.idempotency_keys to %I', role);
                execute format('grant insert on oncely.outbox, oncely.audit to %I', role);
                execute format('grant execute on function oncely.reject(text, text), oncely.handler_name(text, boolean), oncely.try_jsonb(bytea), oncely.handle(text, boolean, boolean, boolean, oncely.message[]), oncely.handle_all(text, boolean, oncely.message[]), oncely.handle_each(text, boolean, boolean, oncely.message[]) to %I', role);
            when 'oncely_relay' then
                -- SELECT … FOR UPDATE takes the privilege to update.
                execute format('grant select, update, delete on oncely.outbox, oncely.idempotency_keys to %I', role);
                execute format('grant execute on function oncely.make_audit_partitions(timestamptz, timestamptz), oncely.drop_audit_partitions(timestamptz) to %I', role);
            when 'oncely_operator' then
                execute format('grant select on oncely.cell to %I', role);
                execute format('grant select, update, delete on oncely.outbox, oncely.idempotency_keys to %I', role);
                execute format('grant select on oncely.audit, oncely.processed_keys, oncely.dead_letters to %I', role);
                execute format('grant execute on function oncely.make_audit_partitions(timestamptz, timestamptz), oncely.drop_audit_partitions(timestamptz) to %I', role);
            when 'oncely_auditor' then
                execute format('grant select on oncely.idempotency_keys, oncely.outbox, oncely.audit, oncely.processed_keys, oncely.dead_letters to %I', role);
        end case;
    end loop;
end
$$;

revoke execute on function oncely.make_audit_partitions(timestamptz, timestamptz) from public;
revoke execute on function oncely.drop_audit_partitions(timestamptz) from public;
