create or replace function oncely.settle_claim(
    tenant text, consumer text, key text, took_effect boolean, note text default null, os_user text default null,
    -- The state that the operator has seen; null: not compared.
    seen_attempts integer default null, seen_token bigint default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
    at timestamptz := clock_timestamp();
    held record;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    select i.attempts, oncely.reopen_steps(i.steps, false) as steps, oncely.has_done(i.steps) as has_done,
        -- The retention starts again.
        oncely.bounded(at + (i.expires_at - coalesce(i.completed_at, i.created_at))) as expires_at
    into held
    from oncely.idempotency_keys as i
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and (
          i.status = 'FAILED'
          -- Ran under a lease, and is no longer held.
          or (
              i.status = 'IN_PROGRESS' and i.fencing_token is not null
              and (i.owner is null or i.not_before <= at)
          )
      )
      -- Another run may have ended since the operator looked, with an unknown outcome, too.
      and (
          seen_attempts is null
          or (i.attempts = seen_attempts and i.fencing_token is not distinct from seen_token)
      )
    for update;
    if not found then
        return false;
    end if;
    if settle_claim.took_effect then
        update oncely.idempotency_keys as i
        set status = 'COMPLETED', completed_at = coalesce(i.completed_at, at), reason = null, last_error = null,
            owner = null, run_ends_at = null, not_before = null
        where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key;
        -- Once the key is collected, only the trail remembers it: then a letter of it must not run. The operator's name
        -- is in operator_actions, which not every reader of the trail may read.
        insert into oncely.audit (
            tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker
        )
        values (
            settle_claim.tenant, at, held.attempts, settle_claim.consumer, settle_claim.key, '', 'completed',
            'settled by hand', 'operator'
        );
    else
        -- A no counts like a refused call: the key begins afresh, in the next round.
        update oncely.idempotency_keys as i
        set status = 'IN_PROGRESS', completed_at = null, reason = null, last_error = null, owner = null,
            run_ends_at = null, attempts = 0, crash_attempts = 0, error_code = null, not_before = at,
            expires_at = held.expires_at, steps = held.steps,
            -- With no step known to be done, the key may run without a lease, too.
            fencing_token = case when held.has_done then i.fencing_token end
        where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key;
    end if;
    insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
    values (
        settle_claim.tenant, oncely.uuid_v7(at), at, concat(session_login, ' (' || left(os_user, 255) || ')'),
        'settle_claim',
        jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect),
        1, left(note, 8000)
    );
    return true;
end
$$;
comment on function oncely.settle_claim is
    'Says of a key that was given up, for whatever reason, or of one that runs under leases left open, whether it took '
    'effect (COMPLETED) or not (may run again with all its attempts, and the steps that began in their next round), '
    'after an operator has looked. False where the key is none of these. For operators.';
revoke execute on function oncely.settle_claim from public;
