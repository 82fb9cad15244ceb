-- Revokes the lease of a holder that hangs, or has lost its host: the key need not wait for the lease to end. The token
-- grows, so that nothing of that run counts any more.
create or replace function oncely.revoke_lease(
    tenant text, consumer text, key text, note text default null, token bigint default null, os_user text default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_variable
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    was record;
begin
    select i.owner, i.fencing_token as token into was
    from oncely.idempotency_keys as i
    where i.tenant = tenant and i.consumer = consumer and i.key = key and i.run_ends_at is not null
    for update;
    -- An operator who examined one run means no later one.
    if not found or was.token <> token then
        return false;
    end if;
    update oncely.idempotency_keys as i
    set owner = null, run_ends_at = null, not_before = at, fencing_token = i.fencing_token + 1
    where i.tenant = tenant and i.consumer = consumer and i.key = key;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        tenant, oncely.uuid_v7(at), at, concat(session_login, ' (' || left(os_user, 255) || ')'), 'revoke_lease',
        jsonb_build_object('consumer', consumer, 'key', key, 'owner', was.owner, 'token', was.token), 1,
        left(note, 8000)
    );
    return true;
end
$$;
comment on function oncely.revoke_lease is
    'Takes a held key from its holder, whose run can complete nothing any more, and can only store the outcome of a '
    'call that it is making; what it has called outside has happened. The next copy runs. token: only where this very '
    'lease still holds it. False where no run holds the key, or another lease does. For operators.';
revoke execute on function oncely.revoke_lease from public;
