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

-- Grants each process as little as its work takes: the columns that it changes instead of whole tables, and functions
-- where a row must only change in one way. The roles are groups without login: grant them to the users that your
-- processes log in as. All grants are here, so that a role's rights are read in one place. Columns are listed, so that
-- a new one is granted to no role by default.
do $roles$
declare
    role text;
    may text;
    wide text;
    relation text;
    -- A key's identity and creation time are written once.
    key_changed constant text := 'completed_at, attempts, crash_attempts, status, fingerprint, response, reason, '
        'error_code, last_error, not_before, expires_at, claimed_in, marked_pid, marked_backend_start, http_status, '
        'http_headers, http_body';
    -- Excludes the message: a handler's answer (but for the status), and the results of steps.
    key_seen constant text := 'created_at, completed_at, attempts, crash_attempts, status, tenant, consumer, key, '
        'fingerprint, reason, error_code, last_error, not_before, expires_at, claimed_in, marked_pid, '
        'marked_backend_start, owner, fencing_token, run_ends_at, http_status';
    letter_changed constant text := 'dead_lettered_at, reason, error_code, detail, attempt, queue, worker, trace_id, '
        'state, generation, times, failure_group, exchange, routing_key, fingerprint, properties, headers, body, '
        'encrypted_by, body_size, omitted, updated_at, swept_at, from_client';
    -- Excludes headers and body.
    letter_seen constant text := 'tenant, id, consumer, key, dead_lettered_at, reason, error_code, detail, attempt, '
        'queue, worker, trace_id, state, generation, times, failure_group, exchange, routing_key, fingerprint, '
        'properties, encrypted_by, body_size, whole, stored_size, omitted, updated_at, swept_at, from_client';
    -- Rows without content that an auditor may not read: of all tenants, or of a tenant auditor's granted ones.
    listing constant text := 'oncely.list_audit, oncely.count_audit, oncely.oldest_audit, oncely.list_keys, '
        'oncely.find_key, oncely.list_retentions, oncely.list_letters, oncely.list_letter_groups, oncely.list_events';
    emitting constant text := 'execute on function ' || (
        select string_agg(format(
            'oncely.emit(text, text, %s, jsonb, text, text, text, interval, text, text, text, text, text, text, '
            'oncely.message)', payload
        ), ', ')
        from unnest(array['text', 'jsonb', 'bytea']) as payload
    );
    -- Excludes headers and payload.
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
                raise notice 'role % not created: the migrating user may not create roles; '
                    'create it before you migrate', role;
        end;
    end loop;

    for role, may in
        select r.role, r.may
        from (
            values
            -- Runs handlers, and records the outcomes of messages.
            ('oncely_worker', 'usage on schema oncely'),
            ('oncely_worker', 'select on oncely.cell, oncely.consumers, oncely.maintenance, oncely.locks, '
                'oncely.idempotency_keys, '
                'oncely.dead_letters, oncely.tenant_limits, oncely.letter_usage, oncely.letter_growth, '
                'oncely.controls'),
            ('oncely_worker', 'insert on oncely.dead_letters, oncely.letter_growth, oncely.mirror_queue'),
            -- Only functions give a lease.
            ('oncely_worker', format(
                'insert (tenant, consumer, key, created_at, %s) on oncely.idempotency_keys', key_changed
            )),
            ('oncely_worker', format('update (%s) on oncely.idempotency_keys', key_changed)),
            ('oncely_worker', format('update (%s) on oncely.dead_letters', letter_changed)),
            ('oncely_worker', 'insert (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, '
                'reason, error_code, detail, worker, trace_id) on oncely.audit'),
            -- For the trace of a duplicate's first run.
            ('oncely_worker', 'select (tenant, occurred_at, consumer, key, outcome, trace_id) on oncely.audit'),
            -- For the state of a key (oncely handler test).
            ('oncely_worker', 'execute on function oncely.find_key'),
            ('oncely_worker', 'execute on function oncely.epoch, oncely.bucket, oncely.in_group, '
                'oncely.tenant_groups, oncely.tenant_nodes, oncely.units, oncely.register_consumer, '
                'oncely.handler_name, oncely.handler_calls, oncely.claim_fresh, oncely.record_fresh, '
                'oncely.response_texts, oncely.handle_parts, oncely.handle_each, oncely.take_turn, oncely.try_jsonb, '
                'oncely.reject, oncely.refuse, oncely.claim_request, oncely.retake_request, '
                'oncely.write_replies, oncely.is_at_work, oncely.beat, oncely.leave, oncely.record_stats, '
                'oncely.mirror_keys, oncely.signing_keys, '
                'oncely.claim_lease, oncely.take_leases, oncely.renew_lease, oncely.renew_leases, oncely.begin_step, '
                'oncely.checkpoint, oncely.refuse_step, oncely.complete_lease, oncely.complete_leases, '
                'oncely.fail_lease, oncely.release_lease, oncely.step_key'),
            ('oncely_worker', emitting),

            -- Relays records and events, and keeps the tables small. SELECT … FOR UPDATE takes the privilege to update
            -- a column; of keys a policy lets it change none.
            ('oncely_relay', 'usage on schema oncely'),
            ('oncely_relay', 'select (only_row, name, history_id, audit_floor, mirror_ttl) on oncely.cell'),
            ('oncely_relay', 'select on oncely.consumers, oncely.maintenance, oncely.locks, oncely.audit_seals, '
                'oncely.processes, '
                'oncely.letter_usage'),
            -- For the retention of tenants' keys.
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
            -- The relay makes the tags of identities, as the worker does: it can write anything to Redis anyway. It
            -- signs nothing.
            ('oncely_relay', 'execute on function oncely.in_group, oncely.tenant_groups, oncely.tenant_nodes, '
                'oncely.units, '
                'oncely.take_lock, oncely.try_session_lock, '
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

            -- An operator with the command line.
            ('oncely_operator', 'usage on schema oncely'),
            ('oncely_operator', 'select on oncely.cell, oncely.consumers, oncely.maintenance, oncely.locks, '
                'oncely.idempotency_keys, '
                'oncely.mirror_queue, oncely.audit, oncely.audit_seals, oncely.processed_keys, oncely.dead_letters, '
                'oncely.dead_letter_groups, oncely.tenant_limits, oncely.letter_usage, oncely.letter_growth, '
                'oncely.events, oncely.ordering_keys, oncely.operator_actions, oncely.rights, oncely.processes, '
                'oncely.stats, oncely.relay_stats, oncely.controls'),
            -- Excludes only the secrets themselves.
            ('oncely_operator', 'select (purpose, id, created_at, signs_from, accepted_until) on oncely.secrets'),
            ('oncely_operator', 'update (not_before) on oncely.idempotency_keys'),
            -- To lock letters, and to mark them as swept. Functions change their state, and record it.
            ('oncely_operator', 'update (swept_at) on oncely.dead_letters'),
            ('oncely_operator', 'execute on function ' || listing),
            ('oncely_operator', 'execute on function oncely.in_group, oncely.tenant_groups, oncely.tenant_nodes, '
                'oncely.units, '
                'oncely.take_lock, '
                'oncely.try_session_lock, '
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
                -- For requeues, and checks of the mirror.
                'oncely.mirror_keys, oncely.signing_keys, oncely.rotate_secret, oncely.forget_secrets'),

            -- Reads decisions, and nothing of the messages themselves.
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
            ('oncely_auditor', 'execute on function oncely.epoch, oncely.bucket, oncely.units, oncely.audit_digest, '
                'oncely.seal_hash, oncely.forgotten_before, oncely.effective_retention, oncely.tenant_retention'),

            -- Reads the same of the tenants in oncely.rights, by functions alone: a login that may select from a table
            -- may plan over the rows of all tenants. Reads nothing about all tenants: neither processes' reports, nor
            -- counts, nor operators' notes.
            ('oncely_tenant_auditor', 'usage on schema oncely'),
            ('oncely_tenant_auditor', 'select (only_row, name, history_id, audit_floor, mirror_ttl) on oncely.cell'),
            ('oncely_tenant_auditor', 'select (consumer, retention, redelivery_horizon, fingerprint, on_conflict, '
                'registered_at, changed_at, paused, former_retention, former_until) on oncely.consumers'),
            ('oncely_tenant_auditor', 'execute on function oncely.bucket, ' || listing),

            -- Applications that emit events, and nothing else. oncely.rights lists the events that each may emit.
            ('oncely_emitter', 'usage on schema oncely'),
            ('oncely_emitter', emitting),

            -- Clients of the SQL protocol have no right to any table: the functions run as their owner, and check
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

    -- Opens the rows of tenants to the roles that work on all tenants, and to no other one: a member of
    -- oncely_tenant_auditor reads by functions, and a grant given to it by mistake shows it no row. It costs nothing:
    -- "true" is removed from a statement before it is planned. Every policy is permissive, because an engine that
    -- spreads tables over nodes may not know others; so a login with two roles has the rows of both. Keys have more
    -- policies, below.
    select string_agg(quote_ident(rolname), ', ' order by rolname) into wide
    from pg_roles
    where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor');
    for relation in
        select c.relname
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attname = 'tenant' and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
        order by c.relname
    loop
        execute format('alter table oncely.%I enable row level security', relation);
        if wide is null then
            continue;
        end if;
        execute case
            when relation = 'idempotency_keys'
                then format('create policy rows_of_all on oncely.idempotency_keys for select to %s using (true)', wide)
            else format('create policy rows_of_all on oncely.%I to %s using (true) with check (true)', relation, wide)
        end;
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
        -- Protects final rows: a worker changes a key that may run and runs under no lease, or one that it has just
        -- claimed in this very transaction (a row that a savepoint wrote does not count). Relay and operator lock rows
        -- to delete them in peace, and change none.
        case role
            when 'oncely_worker' then
                create policy keys_claimed on oncely.idempotency_keys for insert to oncely_worker with check (true);
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
