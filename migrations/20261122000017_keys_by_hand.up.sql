set local search_path = pg_catalog, pg_temp;

-- What a person may do to a key, beside freeing it with its dead letter.

create function oncely.settle_claim(
    tenant text, consumer text, key text, took_effect boolean, note text default null
) returns boolean
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    settled boolean;
begin
    if settle_claim.took_effect is null then
        raise exception using errcode = 'ONC11',
            message = 'oncely: whether it took effect is for you to say: true or false';
    end if;
    update oncely.idempotency_keys as i
    set status = case when took_effect then 'COMPLETED' else 'IN_PROGRESS' end::oncely.key_status,
        completed_at = case when took_effect then i.completed_at end, reason = null, last_error = null
    where i.tenant = settle_claim.tenant and i.consumer = settle_claim.consumer and i.key = settle_claim.key
      and i.status = 'FAILED' and i.reason = 'incomplete_claim';
    settled := found;
    if settled then
        insert into oncely.operator_actions (tenant, id, occurred_at, actor, verb, filter, count, reason)
        values (
            settle_claim.tenant, oncely.uuid_v7(at), at, session_user, 'settle_claim',
            jsonb_build_object('consumer', settle_claim.consumer, 'key', settle_claim.key, 'took_effect', took_effect),
            1, left(note, 8000)
        );
    end if;
    return settled;
end
$$;
comment on function oncely.settle_claim is
    'Says of a claim that was committed without oncely.complete whether it took effect (COMPLETED) or not (may run '
    'again), after somebody has looked. False where the key is no such claim. For operators.';
revoke execute on function oncely.settle_claim from public;

-- A message that does harm is set aside by hand: its key is given up before the message comes again, which then becomes
-- a dead letter without having run.
create function oncely.park(tenant text, consumer text, key text, why text, out outcome text, out known_reason text)
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    text_kept text := 'set aside by hand' || coalesce(': ' || left(park.why, 1000), '');
    known record;
begin
    perform oncely.check_argument('tenant', park.tenant), oncely.check_argument('consumer', park.consumer),
        oncely.check_argument('key', park.key);
    for round in 1..8 loop
        -- Waits for whoever has the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, reason, last_error
        )
        values (park.tenant, park.consumer, park.key, 'FAILED', 0, at, at, 'parked', text_kept)
        on conflict (tenant, consumer, key) do nothing;
        if found then
            outcome := 'parked';
            return;
        end if;
        select i.status, i.reason into known
        from oncely.idempotency_keys as i
        where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key
        for update;
        continue when not found;
        known_reason := known.reason;
        case
            when known.status = 'COMPLETED' then
                outcome := 'completed';
            when known.status = 'FAILED' then
                outcome := 'given_up';
            else
                update oncely.idempotency_keys as i
                set status = 'FAILED', completed_at = at, reason = 'parked', last_error = text_kept, expires_at = null,
                    not_before = null
                where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key;
                outcome := 'parked';
        end case;
        return;
    end loop;
    raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be parked',
        hint = 'Try again.';
end
$$;
comment on function oncely.park is
    'Sets a message aside by hand: its key is given up with the reason parked, so that the next delivery is '
    'dead-lettered without having run. Outcome: parked; completed (it took effect) or given_up (before, for '
    'known_reason), and nothing was changed.';
revoke execute on function oncely.park from public;
