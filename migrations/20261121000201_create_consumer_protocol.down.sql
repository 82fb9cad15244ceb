do $$
declare
    role text;
begin
    for role in select rolname from pg_roles where rolname in ('oncely_consumer', 'oncely_relay') loop
        execute format('revoke all (secret) on oncely.cell from %I', role);
        if role = 'oncely_consumer' then
            execute format('revoke all on all functions in schema oncely from %I', role);
            execute format('revoke all on schema oncely from %I', role);
        end if;
    end loop;
end
$$;
drop function oncely.fail(text, text, text, bytea, integer, text, text, text, integer, interval, text, text, text, text);
drop function oncely.error_class(text);
drop function oncely.complete(text, text, text, jsonb, text, text, text, boolean);
drop function oncely.claim(text, text, text, bytea, interval, text);
drop function oncely.await_standby();
drop function oncely.worker_name(text);
drop function oncely.decide(text, bytea, bytea, text);
drop function oncely.check_call(text, text, text, bytea, interval, text);
drop function oncely.check_argument(text, text);
drop function oncely.protocol_version();
-- Their keys stay; only a mirror entry is not made of them.
delete from oncely.outbox where kind = 'identity';
alter table oncely.outbox
    drop constraint outbox_identity,
    drop constraint outbox_kind,
    add constraint outbox_kind check (kind in ('mirror')),
    alter column tags set not null,
    drop column fingerprint,
    drop column key,
    drop column consumer;
comment on column oncely.outbox.kind is 'mirror: tags for Redis.';
comment on column oncely.outbox.tags is 'Tags of 16 bytes each, of the keys that the batch completed.';
drop index oncely.idempotency_keys_expires_at;
alter table oncely.idempotency_keys drop column expires_at;
comment on column oncely.idempotency_keys.fencing_token is 'Lease mode: number of the claim that may complete the row.';
