create or replace function oncely.complete(
    tenant text,
    consumer text,
    key text,
    response jsonb default null,
    queue text default '',
    worker text default null,
    trace_id text default null,
    mirror boolean default true
) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    now timestamptz := clock_timestamp();
    done record;
begin
    -- The claim has checked this, too. But in a restored database, a claim of the original may have this transaction's
    -- number.
    perform oncely.check_right('consume', consumer, tenant);
    perform oncely.check_short(queue, worker, trace_id);
    if octet_length(response::text) > 65536 then
        raise exception using errcode = 'ONC15',
            message = format('oncely: the response has %s bytes; 65536 are allowed', octet_length(response::text)),
            hint = 'Keep what is large in a table of your own, and respond with its id.';
    end if;
    update oncely.idempotency_keys as i
    set status = 'COMPLETED', response = response, reason = null, last_error = null
    where i.tenant = tenant and i.consumer = consumer and i.key = key
      -- Does not compare the status: that would suit a partial index, which is long; the primary key finds one row.
      and i.reason = 'incomplete_claim' and i.claimed_in = pg_current_xact_id()::text::bigint
    returning i.attempts, i.completed_at, i.expires_at, i.fingerprint into done;
    if not found then
        raise exception using errcode = 'ONC12', message = 'oncely: this transaction holds no claim of the key',
            hint = 'oncely.claim must have granted it, in this very transaction (BEGIN, not autocommit), and not have '
                'been rolled back to a savepoint.';
    end if;
    -- Inlines the insert of oncely.record_decision: it runs for each message of a client.
    insert into oncely.audit (
        tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, login, trace_id
    )
    values (
        tenant, now, done.attempts, extract(epoch from now - done.completed_at) * 1000000, consumer, key,
        coalesce(queue, ''), 'completed', oncely.worker_name(worker), session_login, trace_id
    );
    if mirror then
        -- Created with the key's completion time, not later: the collection keeps keys not older than the oldest
        -- record.
        insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, key, fingerprint)
        values (
            tenant, oncely.uuid_v7(now), 'identity', done.completed_at, done.expires_at, consumer, key, done.fingerprint
        );
    end if;
end
$$;
comment on function oncely.complete is
    'Completes a claim of this transaction: stores the response, writes the audit row and the record for the '
    'mirror. Protocol version 1.';
revoke execute on function oncely.complete from public;
