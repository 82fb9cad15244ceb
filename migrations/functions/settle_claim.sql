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
    at timestamptz := clock_timestamp();
    settled boolean;
    run integer;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    update oncely.idempotency_keys as i
    set status = case when took_effect then 'COMPLETED' else 'IN_PROGRESS' end::oncely.key_status,
        completed_at = case when took_effect then coalesce(i.completed_at, at) end, reason = null, last_error = null,
        owner = null, run_ends_at = null,
        -- A no counts like a refused call: the key begins afresh, in the next round, with a new retention.
        attempts = case when took_effect then i.attempts else 0 end,
        crash_attempts = case when took_effect then i.crash_attempts else 0 end,
        error_code = case when took_effect then i.error_code end,
        not_before = case when not took_effect then at end,
        expires_at = case
            when took_effect then i.expires_at
            else oncely.bounded(at + (i.expires_at - coalesce(i.completed_at, i.created_at)))
        end,
        steps = case when took_effect then i.steps else oncely.reopen_steps(i.steps, false) end,
        -- With no step known to be done, the key may run without a lease, too.
        fencing_token = case when took_effect or oncely.has_done(i.steps) then i.fencing_token end
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and (
          i.status = 'FAILED'
          -- Ran under a lease, and is no longer held.
          or (
              i.status = 'IN_PROGRESS' and i.fencing_token is not null
              and (i.owner is null or i.not_before <= clock_timestamp())
          )
      )
      -- Another run may have ended since the operator looked, with an unknown outcome, too.
      and (
          seen_attempts is null
          or (i.attempts = seen_attempts and i.fencing_token is not distinct from seen_token)
      )
    returning i.attempts into run;
    settled := found;
    if settled then
        -- Once the key is collected, only the trail remembers it: then a letter of it must not run. The operator's name
        -- is in operator_actions, which not every reader of the trail may read.
        if settle_claim.took_effect then
            insert into oncely.audit (
                tenant, occurred_at, attempt, consumer, key, queue, outcome, detail, worker
            )
            values (
                settle_claim.tenant, at, run, settle_claim.consumer, settle_claim.key, '', 'completed',
                'settled by hand', 'operator'
            );
        end if;
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
        values (
            settle_claim.tenant, oncely.uuid_v7(at), at, concat(session_user, ' (' || left(os_user, 255) || ')'),
            'settle_claim',
            jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect),
            1, left(note, 8000)
        );
    end if;
    return settled;
end
$$;
comment on function oncely.settle_claim is
    'Says of a key that was given up, for whatever reason, or of one that runs under leases left open, whether it took '
    'effect (COMPLETED) or not (may run again with all its attempts, and the steps that began in their next round), '
    'after an operator has looked. False where the key is none of these. For operators.';
revoke execute on function oncely.settle_claim from public;
