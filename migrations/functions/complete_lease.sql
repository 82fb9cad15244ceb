create or replace function oncely.complete_lease(
    tenant text,
    consumer text,
    key text,
    token bigint,
    response jsonb default null,
    queue text default '',
    worker text default null,
    trace_id text default null,
    mirror boolean default true,
    refused boolean default false
) returns text
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    held oncely.idempotency_keys;
    now timestamptz;
    retention interval;
    ends timestamptz;
begin
    perform oncely.check_short(queue, worker, trace_id);
    perform oncely.check_json(
        'response', response, 'Keep what is large in a table of your own, and respond with its id.'
    );
    held := oncely.hold_lease(tenant, consumer, key, token);
    now := clock_timestamp();
    if held.status = 'COMPLETED' and held.fencing_token = token then
        perform oncely.await_standby();
        return 'already_completed';
    end if;
    if not oncely.is_held(held.owner, held.fencing_token, token) then
        held := oncely.hold_in_doubt(tenant, consumer, key, token);
        if (held.status = 'FAILED' and held.reason = 'outcome_unknown') is not true then
            perform oncely.lease_is_lost();
        end if;
        -- A requeue of the key's letter would run nothing.
        perform oncely.close_letters(held, now);
    end if;
    retention := oncely.lease_retention(held.expires_at, held.fencing_token);
    ends := oncely.bounded(now + retention);
    update oncely.idempotency_keys as i
    set status = 'COMPLETED', attempts = i.attempts + 1, completed_at = now, response = response,
        -- Identifies the lease that completed the key.
        fencing_token = token,
        reason = case when refused then 'refused' end, last_error = null, error_code = null, claimed_in = null,
        owner = null, run_ends_at = null, not_before = null,
        expires_at = ends
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    perform oncely.record_decision(
        tenant, consumer, key, case when refused then 'refused' else 'completed' end, now, held.attempts + 1, queue,
        worker, trace_id,
        -- The token is the time of the claim, unless the clock was set back.
        greatest(extract(epoch from now) * 1000000 - token, 0)
    );
    if mirror then
        if retention is null then
            select c.retention into retention from oncely.consumers as c where c.consumer = consumer;
        end if;
        insert into oncely.mirror_queue
            (tenant, id, kind, created_at, expires_at, completed_at, consumer, key, fingerprint)
        values (
            tenant, oncely.uuid_v7(now), 'identity', now,
            -- No worker has registered the consumer: only PostgreSQL knows its keys.
            oncely.bounded(now + coalesce(retention, interval '0')),
            -- Set for a key without its own end: a retention shortened before the relay takes it applies.
            case when held.expires_at is null then now end, consumer, key, held.fingerprint
        );
    end if;
    perform oncely.note_claim(tenant);
    return 'completed';
end
$$;
comment on function oncely.complete_lease is
    'Completes a held key: first in the finishing transaction, before its own writes. completed: write, then COMMIT. '
    'already_completed: an earlier transaction of this very lease did it, whose reply was lost: write nothing, COMMIT, '
    'acknowledge. '
    'ONC18: the lease is lost: ROLLBACK, nothing of this run counts. refused: the answer is no, and the response says '
    'why. Lease protocol version 1.';
revoke execute on function oncely.complete_lease from public;
