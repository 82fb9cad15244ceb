set local search_path = pg_catalog, pg_temp;

do $$
declare
    role text;
begin
    for role in
        select rolname from pg_roles where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
    loop
        case role
            when 'oncely_worker' then
                execute format('grant update on oncely.idempotency_keys, oncely.dead_letters to %I', role);
                execute format('grant insert on oncely.events, oncely.audit to %I', role);
                execute format('drop policy if exists keys_worked on oncely.idempotency_keys');
            when 'oncely_relay' then
                execute format('grant select, update on oncely.idempotency_keys to %I', role);
                execute format('revoke select (ctid) on oncely.idempotency_keys from %I', role);
                execute format('grant update on oncely.outbox, oncely.ordering_keys to %I', role);
                execute format('drop policy if exists keys_locked_by_relays on oncely.idempotency_keys');
            when 'oncely_operator' then
                execute format('grant update on oncely.idempotency_keys, oncely.dead_letters, oncely.outbox, oncely.ordering_keys to %I', role);
                execute format('grant delete on oncely.outbox to %I', role);
                execute format('drop policy if exists keys_locked_by_operators on oncely.idempotency_keys');
            when 'oncely_auditor' then
                execute format('grant select on oncely.idempotency_keys to %I', role);
        end case;
    end loop;
end
$$;
drop policy keys_collected on oncely.idempotency_keys;
drop policy keys_claimed on oncely.idempotency_keys;
drop policy keys_read on oncely.idempotency_keys;
alter table oncely.idempotency_keys disable row level security;
drop function oncely.settle_claim(text, text, text, boolean, text);
drop function oncely.free_keys(text[], uuid[]);
drop function oncely.write_replies(text, timestamptz, text[], text[], uuid[], text[], text[], text[], jsonb[]);
