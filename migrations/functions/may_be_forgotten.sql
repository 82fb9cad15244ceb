-- Decides whether a key may go, for the garbage collection and the erasure of a tenant. A key is needed for as long as
-- a copy of its message may come: for its retention after the last event on it (a claim, a failure, a requeue), pauses
-- left out, and for as long as a letter or a mirror record refers to it.
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
    -- Where the key's retention begins at that time: oncely.forgotten_before.
    before timestamptz,
    -- When the keys of the oldest mirror record were completed; null where there is none.
    oldest_record timestamptz,
    -- The key's letters are being closed.
    without_letters boolean default false
) returns boolean
language plpgsql stable security definer
set search_path = pg_catalog, pg_temp
-- Called for each key, with plans that are kept, maybe from when other tables were short.
set enable_seqscan = off
as $$
#variable_conflict use_variable
declare
    last_word constant timestamptz := case
        when expires_at is not null then created_at
        when status = 'IN_PROGRESS'
            -- The token of a lease is the time of its claim.
            then greatest(created_at, not_before, to_timestamp(fencing_token / 1000000.0))
        else completed_at
    end;
begin
    -- A null before keeps all keys of the consumer, too.
    if (last_word <= before) is not true or not_before > at then
        return false;
    end if;
    -- A mirror entry would outlive the key.
    if status = 'COMPLETED' and completed_at >= oldest_record then
        return false;
    end if;
    -- A copy may be on its way that only the key recognises.
    if not without_letters and exists (
        select from oncely.dead_letters as d
        where d.state = 'requeueing' and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.key = may_be_forgotten.key
    ) then
        return false;
    end if;
    if without_letters then
        return true;
    end if;
    -- Only the key records its steps' external calls, and its letter may need them.
    if status <> 'COMPLETED' and fencing_token is not null and exists (
        select from oncely.dead_letters as d
        where hashtextextended(d.key, 0) = hashtextextended(may_be_forgotten.key, 0)
            and d.key = may_be_forgotten.key and d.tenant = may_be_forgotten.tenant
            and d.consumer = may_be_forgotten.consumer and d.state <> 'discarded'
    ) then
        return false;
    end if;
    -- Set aside by hand: the message may come at any time, and must not run then. Afterwards its letter decides.
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
