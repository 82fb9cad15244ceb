-- Each role as little as its work takes: the columns that it changes instead of whole tables, and functions where a row must only change
-- in one way.

set local search_path = pg_catalog, pg_temp;

-- A worker wrote replies straight into the table of events, and so could anything that ran as it.
create function oncely.write_replies(
    consumer text, at timestamptz, tenants text[], keys text[], ids uuid[], reply_tos text[], message_ids text[], correlation_ids text[],
    headers jsonb[]
)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    written bigint;
begin
    -- A reply's body is rendered here, from the stored response, for the first run and for a duplicate alike: the same bytes.
    insert into oncely.events (
        tenant, id, created_at, available_at, exchange, routing_key, reply, message_id, correlation_id, content_type, app_id, headers, payload
    )
    select r.tenant, r.id, write_replies.at, write_replies.at, '', r.reply_to, true, r.message_id, r.correlation_id, 'application/json',
        'oncely', r.headers, convert_to(coalesce(i.response::text, 'null'), 'UTF8')
    from unnest(tenants, keys, ids, reply_tos, message_ids, correlation_ids, headers)
        as r (tenant, key, id, reply_to, message_id, correlation_id, headers)
    join oncely.idempotency_keys as i on i.tenant = r.tenant and i.consumer = write_replies.consumer and i.key = r.key;
    get diagnostics written = row_count;
    return written;
end
$$;
comment on function oncely.write_replies(text, timestamptz, text[], text[], uuid[], text[], text[], text[], jsonb[]) is 'Writes the stored responses of keys as events for whoever asked. For workers.';
revoke execute on function oncely.write_replies(text, timestamptz, text[], text[], uuid[], text[], text[], text[], jsonb[]) from public;

create function oncely.free_keys(tenants text[], letters uuid[]) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
declare
    freed bigint;
begin
    update oncely.idempotency_keys as i
    set status = 'IN_PROGRESS', attempts = 0, crash_attempts = 0, completed_at = null, reason = null, not_before = null,
        error_code = null
    from unnest(tenants, letters) as l (tenant, id)
    join oncely.dead_letters as d on d.tenant = l.tenant and d.id = l.id
    where i.tenant = d.tenant and i.consumer = d.consumer and i.key = d.key and i.status = 'FAILED'
      and coalesce(oncely.same_payload(i.fingerprint, d.fingerprint), true);
    get diagnostics freed = row_count;
    return freed;
end
$$;
comment on function oncely.free_keys(text[], uuid[]) is 'Makes the keys of dead letters runnable again: only where a key was given up, with this very payload. The one way from a final state back to IN_PROGRESS, but for settle_claim. For operators.';
revoke execute on function oncely.free_keys(text[], uuid[]) from public;

create function oncely.settle_claim(tenant text, consumer text, key text, took_effect boolean, note text default null) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    settled boolean;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11', message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    update oncely.idempotency_keys as i
    set status = case when took_effect then 'COMPLETED' else 'IN_PROGRESS' end,
        completed_at = case when took_effect then i.completed_at end, reason = null, last_error = null
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and i.status = 'FAILED' and i.reason = 'incomplete_claim';
    settled := found;
    if settled then
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
        values (
            settle_claim.tenant, oncely.uuid_v7(at), at, session_user, 'settle_claim',
            jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect), 1, left(note, 8000)
        );
    end if;
    return settled;
end
$$;
comment on function oncely.settle_claim(text, text, text, boolean, text) is 'Says of a claim that was committed without oncely.complete whether it took effect (COMPLETED) or not (may run again), after somebody has looked. False where the key is no such claim. For operators.';
revoke execute on function oncely.settle_claim(text, text, text, boolean, text) from public;

-- What was done stays done: a worker changes a key that may run, or one that it has just claimed in this very transaction (a row of a
-- savepoint's is none). Relay and operator lock rows to delete them in peace, and change none.
alter table oncely.idempotency_keys enable row level security;
create policy keys_read on oncely.idempotency_keys for select using (true);
create policy keys_claimed on oncely.idempotency_keys for insert with check (true);
create policy keys_collected on oncely.idempotency_keys for delete using (true);

do $$
declare
    role text;
    changed text;
    seen text;
    letter text;
begin
    -- Who a key is, and since when, is written once.
    select string_agg(format('%I', attname), ', ' order by attnum) into changed
    from pg_attribute
    where attrelid = 'oncely.idempotency_keys'::regclass and attnum > 0 and not attisdropped
      and attname not in ('tenant', 'consumer', 'key', 'created_at');
    -- Neither what a handler answered nor what it said of the message.
    select string_agg(format('%I', attname), ', ' order by attnum) into seen
    from pg_attribute
    where attrelid = 'oncely.idempotency_keys'::regclass and attnum > 0 and not attisdropped and attname <> 'response';
    select string_agg(format('%I', attname), ', ' order by attnum) into letter
    from pg_attribute
    where attrelid = 'oncely.dead_letters'::regclass and attnum > 0 and not attisdropped and attgenerated = ''
      and attname not in ('tenant', 'id', 'consumer', 'key');
    for role in
        select rolname from pg_roles where rolname in ('oncely_worker', 'oncely_relay', 'oncely_operator', 'oncely_auditor')
    loop
        case role
            when 'oncely_worker' then
                execute format('revoke update on oncely.idempotency_keys, oncely.dead_letters from %I', role);
                execute format('grant update (%s) on oncely.idempotency_keys to %I', changed, role);
                execute format('grant update (%s) on oncely.dead_letters to %I', letter, role);
                execute format(
                    'create policy keys_worked on oncely.idempotency_keys for update to %I '
                    'using (status = ''IN_PROGRESS'' or xmin = pg_current_xact_id()::xid) with check (true)', role
                );
                execute format('revoke insert on oncely.events, oncely.audit from %I', role);
                execute format('grant insert (tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, reason, error_code, detail, worker, trace_id) on oncely.audit to %I', role);
                execute format('grant execute on function oncely.write_replies(text, timestamptz, text[], text[], uuid[], text[], text[], text[], jsonb[]) to %I', role);
            when 'oncely_relay' then
                -- SELECT … FOR UPDATE takes the privilege to update some column.
                execute format('revoke select, update on oncely.idempotency_keys from %I', role);
                execute format('grant select (ctid, %s), update (owner) on oncely.idempotency_keys to %I', seen, role);
                execute format('create policy keys_locked_by_relays on oncely.idempotency_keys for update to %I using (true) with check (false)', role);
                execute format('revoke update on oncely.outbox, oncely.ordering_keys from %I', role);
                execute format('grant update (expires_at) on oncely.outbox to %I', role);
                execute format('grant update (used_at) on oncely.ordering_keys to %I', role);
            when 'oncely_operator' then
                execute format('revoke update on oncely.idempotency_keys, oncely.dead_letters from %I', role);
                execute format('grant update (owner) on oncely.idempotency_keys to %I', role);
                execute format('grant update (%s) on oncely.dead_letters to %I', letter, role);
                execute format('create policy keys_locked_by_operators on oncely.idempotency_keys for update to %I using (true) with check (false)', role);
                execute format('revoke update, delete on oncely.outbox from %I', role);
                execute format('revoke update on oncely.ordering_keys from %I', role);
                execute format('grant update (used_at) on oncely.ordering_keys to %I', role);
                execute format('grant execute on function oncely.free_keys(text[], uuid[]), oncely.settle_claim(text, text, text, boolean, text) to %I', role);
            when 'oncely_auditor' then
                execute format('revoke select on oncely.idempotency_keys from %I', role);
                execute format('grant select (%s) on oncely.idempotency_keys to %I', seen, role);
        end case;
    end loop;
end
$$;
