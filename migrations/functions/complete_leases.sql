-- Completes many keys at once, of runs that write nothing themselves: one statement, one commit. complete_lease reports
-- on keys that are not in the expected state.
create or replace function oncely.complete_leases(
    tenants text[],
    consumer text,
    keys text[],
    tokens bigint[],
    responses jsonb[],
    refused boolean[],
    queues text[],
    worker text,
    trace_ids text[],
    tags bytea,
    out place bigint,
    out outcome text
) returns setof record
language plpgsql volatile security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
-- Updates row by row through the primary key, in the given order, whatever the statistics at planning time.
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    own bigint := pg_current_xact_id()::text::bigint;
    now timestamptz := clock_timestamp();
    micros bigint := extract(epoch from now) * 1000000;
    name text := oncely.worker_name(worker);
    retention interval;
    -- Places of the keys that were held.
    done bigint[];
begin
    perform oncely.check_isolation(), oncely.check_short(null, worker, null);
    with asked as materialized (
        select q.tenant, q.key, q.token, q.response, coalesce(q.refused, false) as refused, q.queue, q.trace_id, q.place
        from unnest(tenants, keys, tokens, responses, refused, queues, trace_ids) with ordinality
            as q (tenant, key, token, response, refused, queue, trace_id, place)
        where (
                octet_length(q.response::text) > 65536
                and octet_length(q.response::text) > oncely.json_limit(q.response)
            ) is not true
            and (greatest(octet_length(q.queue), octet_length(q.trace_id)) > 255) is not true
    ),
    completed as (
        update oncely.idempotency_keys as i
        set status = 'COMPLETED', attempts = i.attempts + 1, completed_at = now, response = a.response,
            reason = case when a.refused then 'refused' end, last_error = null, error_code = null, claimed_in = null,
            owner = null, run_ends_at = null, not_before = null
        from asked as a
        where oncely.in_group(i.tenant, tenants) and i.tenant = a.tenant and i.consumer = consumer and i.key = a.key
            -- Matches held keys, worded to suit no partial index: the primary key finds the row.
            and i.fencing_token = a.token and i.run_ends_at is not null and i.claimed_in is distinct from own
            -- A client's claim set an end: complete_lease computes the new one.
            and i.expires_at is null
        returning a.place, a.tenant, a.key, a.token, a.refused, a.queue, a.trace_id, i.attempts
    ),
    recorded as (
        insert into oncely.audit (
            tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, worker, login, trace_id
        )
        select c.tenant, now, c.attempts,
            -- The token is the time of the claim, unless the clock was set back.
            greatest(micros - c.token, 0), consumer, c.key, coalesce(c.queue, ''),
            case when c.refused then 'refused' else 'completed' end, name, session_login, c.trace_id
        from completed as c
    )
    select coalesce(array_agg(c.place), '{}') into done
    from completed as c;
    return query
    select d.place, 'completed' from unnest(done) as d (place);
    -- Keys that were completed earlier have their records already.
    if tags is not null and cardinality(done) > 0 then
        select c.retention into retention from oncely.consumers as c where c.consumer = consumer;
        insert into oncely.mirror_queue (tenant, id, kind, created_at, expires_at, consumer, tags)
        values (
            tenants[1], oncely.uuid_v7(now), 'mirror', now,
            -- No worker has registered the consumer: only PostgreSQL knows its keys.
            oncely.bounded(now + coalesce(retention, interval '0')), consumer, tags
        );
    end if;
    if cardinality(done) < cardinality(keys) then
        return query
        select q.place,
            oncely.complete_lease(
                q.tenant, consumer, q.key, q.token, q.response, q.queue, worker, q.trace_id, true, q.refused
            )
        from unnest(tenants, keys, tokens, responses, refused, queues, trace_ids) with ordinality
            as q (tenant, key, token, response, refused, queue, trace_id, place)
        where q.place <> all (done);
    end if;
end
$$;
comment on function oncely.complete_leases is
    'oncely.complete_lease for many keys at once, by their places; tags: of all of them, for the mirror, or null. '
    'An error of one is an error of all: then each is completed by itself. For workers.';
revoke execute on function oncely.complete_leases from public;
