-- Sets a harmful message aside by hand: gives its key up before the message comes again, so that it becomes a dead
-- letter without having run.
create or replace function oncely.park(
    tenant text, consumer text, key text, why text, os_user text, out outcome text, out known_reason text
)
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
        -- Waits for the session that has the key in an open transaction.
        insert into oncely.idempotency_keys (
            tenant, consumer, key, status, attempts, created_at, completed_at, reason, last_error
        )
        values (park.tenant, park.consumer, park.key, 'FAILED', 0, at, at, 'parked', text_kept)
        on conflict (tenant, consumer, key) do nothing;
        if found then
            outcome := 'parked';
            exit;
        end if;
        select i.status, i.reason, i.owner into known
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
            -- The run may be making an external call: revoke its lease first (oncely.revoke_lease).
            when known.owner is not null then
                outcome := 'held';
            else
                update oncely.idempotency_keys as i
                set status = 'FAILED', completed_at = at, reason = 'parked', last_error = text_kept, expires_at = null,
                    not_before = null
                where i.tenant = park.tenant and i.consumer = park.consumer and i.key = park.key;
                outcome := 'parked';
        end case;
        exit;
    end loop;
    if outcome is null then
        raise exception using errcode = 'ONC14', message = 'oncely: the key changes faster than it can be parked',
            hint = 'Try again.';
    end if;
    if outcome = 'parked' then
        perform oncely.record_action(
            park.tenant, 'park',
            jsonb_build_object('tenant', park.tenant, 'consumer', park.consumer, 'key', park.key), 1, park.why,
            park.os_user
        );
    end if;
end
$$;
comment on function oncely.park is
    'Sets a message aside by hand: its key is given up with the reason parked, so that the next delivery is '
    'dead-lettered without having run. Outcome: parked; completed (it took effect), given_up (before, for '
    'known_reason) or held (a run has it by a lease), and nothing was changed. Recorded in operator_actions.';
revoke execute on function oncely.park from public;
