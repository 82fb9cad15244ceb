create or replace function oncely.claim_lease(
    tenant text,
    consumer text,
    key text,
    fingerprint bytea,
    owner text,
    lease interval default interval '30 seconds',
    max_run interval default interval '10 minutes',
    retention interval default interval '7 days',
    on_conflict text default 'dead_letter',
    max_crashes integer default 3,
    queue text default '',
    worker text default null,
    trace_id text default null,
    may_take_over boolean default true,
    out outcome text,
    out token bigint,
    out attempt integer,
    out taken_over boolean,
    out delay interval,
    out response jsonb,
    out reason text,
    out detail text,
    out steps jsonb
)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
set lock_timeout = '100ms'
as $$
#variable_conflict use_variable
begin
    retention := oncely.check_call(tenant, consumer, key, fingerprint, retention, on_conflict);
    if extract(epoch from max_run) > extract(epoch from retention) then
        raise exception using errcode = 'ONC11', message = 'oncely: max_run is longer than retention',
            hint = 'The key must outlive its run.';
    end if;
    perform oncely.check_right('consume', consumer, tenant);
    select t.outcome, t.token, t.attempt, t.taken_over, t.delay, t.response, t.reason, t.detail, t.steps
    into outcome, token, attempt, taken_over, delay, response, reason, detail, steps
    from oncely.take_lease(
        tenant, consumer, key, oncely.stored_fingerprint(fingerprint), owner, lease, max_run, retention, on_conflict,
        max_crashes, queue, worker, trace_id, fingerprint is not null, coalesce(may_take_over, true)
    ) as t;
    if outcome = 'retry' and detail is not null then
        outcome := 'in_flight';
        detail := null;
    end if;
end
$$;
comment on function oncely.claim_lease is
    'Holds a key for a time: granted (COMMIT, do the work under the token, oncely.complete_lease), in_flight (another '
    'run holds it) or retry (its delay is not over): COMMIT, wait, requeue, no attempt is spent; duplicate (with the '
    'response; without it, for key_conflict, where another fingerprint policy has stored it), conflict or given_up '
    '(dead-letter it). Owner: a name made anew for each acquisition; claimed again by '
    'the same one, after a lost reply, it is granted again. may_take_over: false where you could not reach the server '
    'within the last lease. 55P03: another transaction has the key: ROLLBACK, ask again later. Lease protocol '
    'version 1.';
revoke execute on function oncely.claim_lease from public;
