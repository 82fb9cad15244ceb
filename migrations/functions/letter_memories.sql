-- Classifies the keys of letters. A letter that waited longer than its key is remembered is published again only if the
-- trail, kept longer, shows no effect. Reads all letters in one statement, by index probes whatever the tables' sizes
-- (hence limit and offset, which leave no other plan): planned for each letter, the trail's partitions took a
-- millisecond each time.
create or replace function oncely.letter_memories(tenants text[], letters uuid[], at timestamptz)
returns table (tenant text, id uuid, memory text)
language plpgsql stable
set search_path = pg_catalog, pg_temp
-- Plans with the letters: a kept plan might be from when the tables were short.
set plan_cache_mode = force_custom_plan
as $$
#variable_conflict use_column
begin
    return query
    select d.tenant, d.id,
        case
            when d.tenant = '' or d.key = '' then 'NONE'
            when i.status is not null then i.status::text
            -- Checked for letters of any age: a key may have been collected under a shorter retention than the present
            -- one, or under its claim's own. No guarantee covers an effect older than the key's retention.
            when exists (
                select from oncely.audit as a
                where hashtextextended(a.key, 0) = hashtextextended(d.key, 0) and a.key = d.key
                  and a.tenant = d.tenant and a.consumer = d.consumer and a.outcome in ('completed', 'refused')
                  and a.occurred_at > m.began
                offset 0
            ) then 'TOOK_EFFECT'
            when s.until_time <= m.began then 'NONE'
            -- Before the message became a dead letter its key was unknown; since then the trail shows no effect.
            when s.until_time <= d.dead_lettered_at and d.dead_lettered_at > oncely.forgotten_before(
                letter_memories.at,
                oncely.tenant_retention(
                    letter_memories.at, c.retention, c.redelivery_horizon, e.mirror_ttl, t.retention,
                    t.former_retention, t.former_until
                ),
                c.paused
            )
            then 'NONE'
            else 'FORGOTTEN'
        end
    from unnest(letter_memories.tenants, letter_memories.letters) as l (tenant, id)
    join oncely.dead_letters as d
        on oncely.in_group(d.tenant, letter_memories.tenants) and d.tenant = l.tenant and d.id = l.id
    left join lateral (
        select k.status from oncely.idempotency_keys as k
        where k.tenant = d.tenant and k.consumer = d.consumer and k.key = d.key
        limit 1
    ) as i on true
    left join oncely.consumers as c on c.consumer = d.consumer
    left join oncely.tenant_limits as t on t.tenant = d.tenant
    cross join oncely.cell as e
    cross join lateral (
        select case
                when i.status is not null then null
                -- Claimed anew: an earlier completion belongs to another message. For an unregistered consumer (of a
                -- client), each key has its own retention, and was remembered when the letter was stored.
                when d.reason = 'incomplete_claim' or c.retention is null then d.dead_lettered_at
                -- Under a former retention the key was known for longer; a clock may have been ahead.
                else oncely.forgotten_before(
                    least(d.dead_lettered_at, letter_memories.at),
                    -- greatest ignores nulls, and here is none: without a consumer, the branch above applies.
                    greatest(c.longest_retention, t.longest_retention),
                    c.paused
                )
            end as began
        offset 0
    ) as m
    cross join (
        select coalesce(max(a.until_time), '-infinity') as until_time from oncely.audit_seals as a
        where a.kind = 'dropped'
    ) as s;
end
$$;
comment on function oncely.letter_memories is
    'What is known of the keys of dead letters: the status; NONE: it never took effect; TOOK_EFFECT: it did, says '
    'the trail, though the key is collected; FORGOTTEN: it can''t be said any more.';
revoke execute on function oncely.letter_memories from public;
