-- locks oncely.audit against everybody
-- locks oncely.dead_letters against everybody
-- locks oncely.events against everybody
-- locks oncely.idempotency_keys against everybody
-- locks oncely.letter_growth against everybody
-- locks oncely.letter_usage against everybody
-- locks oncely.mirror_queue against everybody
-- locks oncely.operator_actions against everybody
-- locks oncely.ordering_keys against everybody
-- locks oncely.rights against everybody
-- locks oncely.tenant_limits against everybody
set local search_path = pg_catalog, pg_temp;

-- Each process with as little as its work takes: the columns that it changes instead of whole tables, and functions
-- where a row must only change in one way. The roles are groups without login: grant them to the users that your
-- processes log in as. Here and nowhere else, so that what a role may do is read in one place.
-- Columns are listed, so that a new one is nobody's until somebody has thought about it.
do $roles$
declare
    role text;
    may text;
    relation text;
    -- Who a key is, and since when, is written once.
    key_changed constant text := 'completed_at, attempts, crash_attempts, status, fingerprint, response, reason, '
        'error_code, last_error, not_before, expires_at, claimed_in, marked_pid, marked_backend_start, http_status, '
        'http_headers, http_body';
    -- Nothing of the message: not what a handler answered (but for the status), nor the results of steps.
    key_seen constant text := 'created_at, completed_at, attempts, crash_attempts, status, tenant, consumer, key, '
        'fingerprint, reason, error_code, last_error, not_before, expires_at, claimed_in, marked_pid, '
        'marked_backend_start, owner, fencing_token, run_ends_at, http_status';
    letter_changed constant text := 'dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id, '
        'state, generation, times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, '
        'encrypted_by, body_size, omitted, updated_at, swept_at, from_client';
    -- Neither headers nor body.
    letter_seen constant text := 'tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, '
        'queue, worker, trace_id, state, generation, times, failure_group, exchange, routing_key, fingerprint, '
        'properties, encrypted_by, body_size, whole, stored_size, omitted, updated_at, swept_at, from_client';
    -- Rows without what an auditor may not read: of all tenants, or of those that a tenant auditor's login was granted.
    listing constant text := 'oncely.list_audit, oncely.count_audit, oncely.oldest_audit, oncely.list_keys, '
        'oncely.find_key, oncely.list_retentions, oncely.list_letters, oncely.list_letter_groups, oncely.list_events';
    emitting constant text := 'execute on function ' || (
        select string_agg(format(
            'oncely.emit(text, text, %s, jsonb, text, text, text, interval, text, text, text, text, text, text, '
            'oncely.message)', payload
        ), ', ')
        from unnest(array['text', 'jsonb', 'bytea']) as payload
    );
    -- Neither headers nor payload.
    event_seen constant text := 'tenant, id, created_at, available_at, ordering_number, attempts, state, exchange, '
        'routing_key, ordering_key, message_id, content_type, type, correlation_id, reply_to, app_id, reason, '
        'last_error, reply';
begin
    foreach role in array array[
        'oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor', 'oncely_tenant_auditor',
        'oncely_emitter', 'oncely_consumer'
    ] loop
        begin
            -- Roles belong to the server, databases do not: a second cell, or a test beside this one, finds them made.
            execute format('create role %I nologin', role);
        exception
            when duplicate_object or unique_violation then
                null;
            when insufficient_privilege then
                raise notice 'role % not created: the migrating user may not create roles', role;
        end;
    end loop;

    for role, may in
        select r.role, r.may
        from (
            values
            -- Runs handlers, and records what became of their messages.
            ('oncely_worker', 'usage on schema oncely'),
            ('oncely_worker', 'select on oncely.cell, oncely.consumers, oncely.maintenance, oncely.locks, '
                'oncely.idempotency_keys, '
                'oncely.dead_letters, oncely.tenant_limits, oncely.letter_usage, oncely.letter_growth, '
                'oncely.controls'),
            ('oncely_worker', 'insert on oncely.dead_letters, oncely.letter_growth, oncely.mirror_queue'),
            -- A lease is given by functions alone.
            ('oncely_worker', format(
                'insert (tenant, consumer, key, created_at, %s) on oncely.idempotency_keys', key_changed
            )),
            ('oncely_worker', format('update (%s) on oncely.idempotency_keys', key_changed)),
            ('oncely_worker', format('update (%s) on oncely.dead_letters', letter_changed)),
            ('oncely_worker', 'insert (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, '
                'reason, error_code, detail, worker, trace_id) on oncely.audit'),
            -- Of which trace the first run of a duplicate was.
            ('oncely_worker', 'select (tenant, occurred_at, consumer, key, outcome, trace_id) on oncely.audit'),
            -- What is known of a key (oncely handler test).
            ('oncely_worker', 'execute on function oncely.find_key'),
            ('oncely_worker', 'execute on function oncely.epoch, oncely.bucket, oncely.register_consumer, '
                'oncely.handler_name, oncely.handler_calls, oncely.claim_fresh, oncely.record_fresh, '
                'oncely.handle_parts, oncely.handle_each, oncely.take_turn, oncely.try_jsonb, oncely.reject, '
                'oncely.refuse, '
                'oncely.write_replies, oncely.is_at_work, oncely.beat, oncely.leave, oncely.record_stats, '
                'oncely.mirror_keys, oncely.signing_keys, '
                'oncely.claim_lease, oncely.take_leases, oncely.renew_lease, oncely.renew_leases, oncely.begin_step, '
                'oncely.checkpoint, oncely.refuse_step, oncely.complete_lease, oncely.complete_leases, '
                'oncely.fail_lease, oncely.release_lease, oncely.step_key'),
            ('oncely_worker', emitting),

            -- Moves what is on its way, and keeps the tables small. SELECT … FOR UPDATE takes the privilege to update
            -- some column; of keys a policy lets it change none.
            ('oncely_relay', 'usage on schema oncely'),
            ('oncely_relay', 'select (only_row, name, history_id, audit_floor, mirror_ttl) on oncely.cell'),
            ('oncely_relay', 'select on oncely.consumers, oncely.maintenance, oncely.locks, oncely.audit_seals, '
                'oncely.processes, '
                'oncely.letter_usage'),
            -- How long a tenant's keys are kept.
            ('oncely_relay', 'select (tenant, retention, former_retention, former_until) on oncely.tenant_limits'),
            ('oncely_relay', 'select (purpose, id, created_at, signs_from, accepted_until) on oncely.secrets'),
            ('oncely_relay', 'select, update (expires_at) on oncely.mirror_queue'),
            ('oncely_relay', 'select, update (available_at, attempts, state, reason, last_error) on oncely.events'),
            ('oncely_relay', 'select on oncely.ordering_keys'),
            ('oncely_relay', format(
                'select (ctid, %s), update (not_before) on oncely.idempotency_keys', key_seen
            )),
            ('oncely_relay', 'select (tenant, id, consumer, key, state, updated_at, swept_at), update (swept_at) '
                'on oncely.dead_letters'),
            -- It makes the tags of identities, as the worker does: it can write to Redis whatever it likes anyway. It
            -- signs nothing.
            ('oncely_relay', 'execute on function oncely.take_lock, oncely.try_session_lock, '
                'oncely.release_session_lock, '
                'oncely.delete_mirrored, oncely.delete_events, oncely.delete_keys, oncely.collect_ordering_keys, '
                'oncely.collect_dead_letters, oncely.mirror_keys, oncely.forget_secrets, oncely.epoch, '
                'oncely.bucket, oncely.make_audit_partition, '
                'oncely.make_audit_partitions, oncely.drop_audit_partition, oncely.drop_audit_partitions, '
                'oncely.seal_audit, oncely.observe_clock, oncely.forgotten_before, oncely.effective_retention, '
                'oncely.tenant_retention, oncely.may_be_forgotten, oncely.count_letters, oncely.register_mirror_ttl, '
                'oncely.summarize_audit, '
                'oncely.beat, oncely.leave, '
                'oncely.bury_processes, oncely.record_relay_stats, oncely.roll_up_stats, oncely.prune_stats'),

            -- A person with the command line.
            ('oncely_operator', 'usage on schema oncely'),
            ('oncely_operator', 'select on oncely.cell, oncely.consumers, oncely.maintenance, oncely.locks, '
                'oncely.idempotency_keys, '
                'oncely.mirror_queue, oncely.audit, oncely.audit_seals, oncely.processed_keys, oncely.dead_letters, '
                'oncely.dead_letter_groups, oncely.tenant_limits, oncely.letter_usage, oncely.letter_growth, '
                'oncely.events, oncely.ordering_keys, oncely.operator_actions, oncely.rights, oncely.processes, '
                'oncely.stats, oncely.relay_stats, oncely.controls'),
            -- Everything but the secrets.
            ('oncely_operator', 'select (purpose, id, created_at, signs_from, accepted_until) on oncely.secrets'),
            ('oncely_operator', 'update (not_before) on oncely.idempotency_keys'),
            -- To lock them, and to note that a queue was swept. Their state changes by functions, which record it.
            ('oncely_operator', 'update (swept_at) on oncely.dead_letters'),
            ('oncely_operator', 'execute on function ' || listing),
            ('oncely_operator', 'execute on function oncely.take_lock, oncely.try_session_lock, '
                'oncely.release_session_lock, '
                'oncely.is_session_locked, oncely.change_events, oncely.delete_keys, oncely.collect_ordering_keys, '
                'oncely.collect_dead_letters, oncely.epoch, oncely.bucket, oncely.make_audit_partition, '
                'oncely.make_audit_partitions, oncely.drop_audit_partition, oncely.drop_audit_partitions, '
                'oncely.seal_audit, oncely.audit_digest, oncely.seal_hash, oncely.observe_clock, '
                'oncely.forgotten_before, oncely.effective_retention, oncely.tenant_retention, '
                'oncely.may_be_forgotten, oncely.accept_clock, '
                'oncely.set_retention, oncely.set_tenant_retention, '
                'oncely.record_action, oncely.letter_memories, oncely.count_letters, oncely.limit_tenant, '
                'oncely.limit_events, '
                'oncely.decide_letters, oncely.finish_requeue, oncely.free_keys, oncely.forget_processes, '
                'oncely.settle_claim, oncely.revoke_lease, oncely.park, '
                'oncely.grant_right, oncely.revoke_rights, '
                'oncely.mirror_again, oncely.seed_keys, oncely.pause_consumer, oncely.resume_consumer, '
                -- It requeues, and looks for what is mirrored.
                'oncely.mirror_keys, oncely.signing_keys, oncely.rotate_secret, oncely.forget_secrets'),

            -- Reads what was decided, and nothing of the messages themselves.
            ('oncely_auditor', 'usage on schema oncely'),
            ('oncely_auditor', 'select (only_row, name, history_id, audit_floor, tenant_events, tenant_event_bytes, '
                'mirror_ttl) on oncely.cell'),
            ('oncely_auditor', 'select on oncely.consumers, oncely.maintenance, oncely.locks, oncely.mirror_queue, '
                'oncely.audit, '
                'oncely.audit_seals, oncely.processed_keys, oncely.dead_letter_groups, oncely.tenant_limits, '
                'oncely.letter_usage, oncely.letter_growth, oncely.ordering_keys, oncely.operator_actions, '
                'oncely.rights, oncely.processes, oncely.stats, oncely.relay_stats, '
                'oncely.controls'),
            ('oncely_auditor', 'select (purpose, id, created_at, signs_from, accepted_until) on oncely.secrets'),
            ('oncely_auditor', format('select (%s) on oncely.idempotency_keys', key_seen)),
            ('oncely_auditor', format('select (%s) on oncely.dead_letters', letter_seen)),
            ('oncely_auditor', format('select (%s) on oncely.events', event_seen)),
            ('oncely_auditor', 'execute on function ' || listing),
            ('oncely_auditor', 'execute on function oncely.epoch, oncely.bucket, oncely.audit_digest, '
                'oncely.seal_hash, oncely.forgotten_before, oncely.effective_retention, oncely.tenant_retention'),

            -- The same, of the tenants that oncely.rights says, and by functions alone: who may select from a table may
            -- plan over the rows of all tenants. Nothing that is of all tenants: neither what processes say of
            -- themselves, nor counts, nor the words of operators.
            ('oncely_tenant_auditor', 'usage on schema oncely'),
            ('oncely_tenant_auditor', 'select (only_row, name, history_id, audit_floor, mirror_ttl) on oncely.cell'),
            ('oncely_tenant_auditor', 'select (consumer, retention, redelivery_horizon, fingerprint, on_conflict, '
                'registered_at, changed_at, paused, former_retention, former_until) on oncely.consumers'),
            ('oncely_tenant_auditor', 'execute on function oncely.bucket, oncely.readable_tenants, ' || listing),

            -- Applications that emit events, and nothing else. What they may emit stands in oncely.rights.
            ('oncely_emitter', 'usage on schema oncely'),
            ('oncely_emitter', emitting),

            -- Clients of the SQL protocol. No right to any table: the functions run as their owner, and ask
            -- oncely.rights.
            ('oncely_consumer', 'usage on schema oncely'),
            ('oncely_consumer', 'execute on function oncely.protocol_version, oncely.claim, oncely.complete, '
                'oncely.fail'),
            ('oncely_consumer', 'execute on function oncely.lease_protocol_version, oncely.claim_lease, '
                'oncely.renew_lease, oncely.begin_step, oncely.checkpoint, oncely.refuse_step, oncely.complete_lease, '
                'oncely.fail_lease, oncely.release_lease, oncely.step_key')
        ) as r (role, may)
        where to_regrole(r.role) is not null
    loop
        execute format('grant %s to %I', may, role);
    end loop;

    -- Rows of tenants: everybody sees those that his grants open, but a member of oncely_tenant_auditor those of his
    -- tenants alone, whatever else he is a member of (the policy is restrictive), and none without a right to read.
    -- That role has no grant on these tables itself: this is for a login that has another role, too, and for a grant
    -- that should not have been given. It costs others nothing: "true" is gone from a statement before it is planned.
    -- Keys have policies of their own. Asked once a statement, the list of tenants serves as the condition of an index.
    for relation in
        select c.relname
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
        order by c.relname
    loop
        execute format('alter table oncely.%I enable row level security', relation);
        if relation <> 'idempotency_keys' then
            execute format('create policy rows_of_all on oncely.%I using (true) with check (true)', relation);
        end if;
        if to_regrole('oncely_tenant_auditor') is not null then
            execute format(
                'create policy rows_of_readable_tenants on oncely.%I as restrictive to oncely_tenant_auditor '
                'using (tenant = any (array(select oncely.readable_tenants())))', relation
            );
        end if;
    end loop;

    for role in
        select rolname from pg_roles
        where rolname in (
            'oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor', 'oncely_tenant_auditor'
        )
    loop
        -- For `oncely check`. An sqlx-cli without sqlx.toml support keeps its list elsewhere.
        if to_regclass('oncely._sqlx_migrations') is not null then
            execute format('grant select on oncely._sqlx_migrations to %I', role);
        end if;
        -- What was done stays done: a worker changes a key that may run and runs under no lease, or one that it has
        -- just claimed in this very transaction (a row that a savepoint wrote does not count). Relay and operator lock
        -- rows to delete them in peace, and change none.
        case role
            when 'oncely_worker' then
                create policy keys_worked on oncely.idempotency_keys for update to oncely_worker
                using ((status = 'IN_PROGRESS' and fencing_token is null) or xmin = pg_current_xact_id()::xid)
                with check (true);
            when 'oncely_relay' then
                create policy keys_locked_by_relays on oncely.idempotency_keys for update to oncely_relay
                using (true) with check (false);
            when 'oncely_operator' then
                create policy keys_locked_by_operators on oncely.idempotency_keys for update to oncely_operator
                using (true) with check (false);
            else
                null;
        end case;
    end loop;
end
$roles$;
