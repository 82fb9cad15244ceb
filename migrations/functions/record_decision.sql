-- Records the decisions of the functions for clients. Workers insert their rows themselves, many at once.
create or replace function oncely.record_decision(
    tenant text, consumer text, key text, outcome text, at timestamptz, attempt integer, queue text, worker text,
    trace_id text, duration_us numeric default null, reason text default null, error_code text default null,
    detail text default null
) returns void
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
begin
    insert into oncely.audit (
        tenant, occurred_at, attempt, duration_us, consumer, key, queue, outcome, reason, error_code, detail, worker,
        login, trace_id
    )
    values (
        tenant, at, attempt, duration_us, consumer, key, coalesce(queue, ''), outcome, reason, error_code, detail,
        oncely.worker_name(worker), session_login, trace_id
    );
end
$$;
comment on function oncely.record_decision is
    'Adds a decision of the session''s user to the trail. Not for callers.';
revoke execute on function oncely.record_decision from public;
