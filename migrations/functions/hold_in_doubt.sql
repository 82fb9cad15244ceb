-- A key was given up because nobody knew what became of a call. Whoever made that call may know it after all: its run
-- lost the key while nobody could reach the server, say.
create or replace function oncely.hold_unknown(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language sql volatile
set search_path = pg_catalog, pg_temp
as $$
    select i.*
    from oncely.idempotency_keys as i
    where i.tenant = hold_unknown.tenant and i.consumer = hold_unknown.consumer and i.key = hold_unknown.key
        and i.status = 'FAILED' and i.reason = 'outcome_unknown' and i.fencing_token > hold_unknown.token
        and exists (
            select from jsonb_each(i.steps) as s (name, step)
            where s.step ->> 'state' = 'started' and (s.step ->> 'token')::bigint = hold_unknown.token
        )
    for update
$$;
comment on function oncely.hold_unknown is
    'Locks and returns a key that was given up as outcome_unknown and has a step that this lease began; null where it '
    'is none.';
revoke execute on function oncely.hold_unknown from public;
