-- Registers a relay's lifetime of mirror entries. Each relay has its own configuration, and registers before it writes
-- and every hour, so that the longest of those at work counts.
create or replace function oncely.register_mirror_ttl(ttl interval) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz;
begin
    ttl := justify_hours(
        oncely.checked_time('mirror.ttl', register_mirror_ttl.ttl, interval '0', interval '3650 days')
    );
    if exists (
        select from oncely.cell as c
        where c.mirror_ttl = register_mirror_ttl.ttl and c.mirror_ttl_until is null
    ) then
        return;
    end if;
    -- Takes turns with set_retention, which relies on this value.
    perform from oncely.cell for update;
    at := clock_timestamp();
    -- The longer one is over: the longest of the relays at work replaces it.
    update oncely.cell as c
    set mirror_ttl = greatest(c.mirror_ttl_next, register_mirror_ttl.ttl), mirror_ttl_until = null,
        mirror_ttl_next = null
    where c.mirror_ttl_until < at;
    update oncely.cell as c
    set mirror_ttl = register_mirror_ttl.ttl, mirror_ttl_until = null, mirror_ttl_next = null
    where c.mirror_ttl <= register_mirror_ttl.ttl;
    if not found then
        -- Entries of the longer lifetime live on until it is over, and a relay that has it writes some until it
        -- registers again.
        update oncely.cell as c
        set mirror_ttl_until = coalesce(c.mirror_ttl_until, at + c.mirror_ttl + interval '2 hours'),
            mirror_ttl_next = greatest(c.mirror_ttl_next, register_mirror_ttl.ttl);
    end if;
end
$$;
comment on function oncely.register_mirror_ttl is
    'Notes for how long a relay''s mirror entries live; a shorter one than is known counts when the entries of the '
    'longer one are over.';
revoke execute on function oncely.register_mirror_ttl from public;
