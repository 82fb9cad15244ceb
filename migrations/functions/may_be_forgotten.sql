-- The one place that says which keys may go: the garbage collection and the erasure of a tenant ask it. A key is needed
-- for as long as a copy of its message may come: for its retention after the last word on it (a claim, a failure, a
-- requeue), pauses left out, and for as long as a letter or a mirror record stands for it.
create or replace function oncely.may_be_forgotten(
    tenant text,
    consumer text,
    key text,
    status oncely.key_status,
    reason text,
    created_at timestamptz,
    completed_at timestamptz,
    not_before timestamptz,
    expires_at timestamptz,
    fencing_token bigint,
    at timestamptz,
    -- How far its memory reaches back at that time: oncely.forgotten_before.
    before timestamptz,
    -- Its letters are being closed.
    without_letters boolean default false
) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Asked for each key: planned once.
set plan_cache_mode = force_generic_plan
as $$
#variable_conflict use_variable
declare
    last_word constant timestamptz := case
        when expires_at is not null then created_at
        when status = 'IN_PROGRESS'
            -- A lease's token is the time of its claim.
            then greatest(created_at, not_before, to_timestamp(fencing_token / 1000000.0))
        else completed_at
    end;
begin
    -- Also where before is not known: nothing of the consumer is collected.
    if (last_word <= before) is not true or not_before > at then
        return false;
    end if;
    -- Its entry would outlive it; or a copy of it may be on its way, and only the key would recognise it.
    if status = 'COMPLETED' and exists (
        select from oncely.mirror_queue as q
        where coalesce(q.completed_at, q.created_at) <= may_be_forgotten.completed_at
    ) or not without_letters and exists (
        select from oncely.dead_letters as d
        where d.state = 'requeueing' and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.key = may_be_forgotten.key
    ) then
        return false;
    end if;
    if without_letters then
        return true;
    end if;
    -- What its steps have called outside stands in the key alone, and its letter may ask for it.
    if status <> 'COMPLETED' and fencing_token is not null and exists (
        select from oncely.dead_letters as d
        where hashtextextended(d.key, 0) = hashtextextended(may_be_forgotten.key, 0)
            and d.key = may_be_forgotten.key and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.state <> 'discarded'
    ) then
        return false;
    end if;
    -- Set aside by hand: its message may come at any time, and then must not run. Once it has, its letter speaks.
    if status = 'FAILED' and reason = 'parked' then
        return exists (
            select from oncely.dead_letters as d
            where hashtextextended(d.key, 0) = hashtextextended(may_be_forgotten.key, 0)
                and d.key = may_be_forgotten.key and d.tenant = may_be_forgotten.tenant
                and d.consumer = may_be_forgotten.consumer
        );
    end if;
    return true;
end
$$;
comment on function oncely.may_be_forgotten is
    'May this key be deleted at that time? Not before its retention is over since the last word on it (before: '
    'oncely.forgotten_before), and not while a mirror record, a letter or a parked message may still need it.';
revoke execute on function oncely.may_be_forgotten from public;
