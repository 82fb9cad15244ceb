-- Locks a key with a call in doubt. A call's outcome belongs to its step, even after the lease: the run may have lost
-- the key while the server was unreachable, and learn the outcome when another run has it, or it is given up.
create or replace function oncely.hold_in_doubt(tenant text, consumer text, key text, token bigint)
returns oncely.idempotency_keys
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    held oncely.idempotency_keys;
begin
    select i.* into held
    from oncely.idempotency_keys as i
    where i.tenant = hold_in_doubt.tenant and i.consumer = hold_in_doubt.consumer and i.key = hold_in_doubt.key
        and i.status <> 'COMPLETED'
        and exists (
            select from jsonb_each(i.steps) as s (name, step)
            where s.step ->> 'state' in ('started', 'open') and (s.step ->> 'token')::bigint = hold_in_doubt.token
        )
    for update;
    return held;
end
$$;
comment on function oncely.hold_in_doubt is
    'Locks and returns a key that is not completed and has a step that began under this lease and may have happened; '
    'null where it is none.';
revoke execute on function oncely.hold_in_doubt from public;
