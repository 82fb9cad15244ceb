set local search_path = pg_catalog, pg_temp;

create or replace function oncely.letter_memory(tenant text, consumer text, key text, dead_lettered_at timestamptz, at timestamptz) returns text
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
    status text;
    retention interval;
begin
    if letter_memory.tenant = '' or letter_memory.key = '' then
        return 'NONE';
    end if;
    select i.status into status
    from oncely.idempotency_keys as i
    where i.tenant = letter_memory.tenant and i.consumer = letter_memory.consumer and i.key = letter_memory.key;
    if found then
        return status;
    end if;
    select c.retention into retention from oncely.consumers as c where c.consumer = letter_memory.consumer;
    -- No key of the consumer is ever collected; or this one would still be there.
    if not found or letter_memory.dead_lettered_at + retention > letter_memory.at then
        return 'NONE';
    end if;
    if exists (
        select from oncely.audit as a
        where hashtextextended(a.key, 0) = hashtextextended(letter_memory.key, 0) and a.key = letter_memory.key
          and a.tenant = letter_memory.tenant and a.consumer = letter_memory.consumer and a.outcome = 'completed'
    ) then
        return 'TOOK_EFFECT';
    end if;
    -- What took effect longer before than a key is remembered is nobody's promise.
    if (select coalesce(max(s.until_time), '-infinity') from oncely.audit_seals as s where s.kind = 'dropped')
        <= letter_memory.dead_lettered_at - retention
    then
        return 'NONE';
    end if;
    return 'FORGOTTEN';
end
$$;
