create or replace function oncely.count_letters(letters bigint, letter_bytes bigint) returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    at timestamptz := clock_timestamp();
    crowded text;
    emptied bigint;
    room bigint;
begin
    -- One count at a time: of two counts, the older might be written last, without the growth that the newer removed.
    perform from oncely.locks as k where k.name = 'count_letters' and k.pid = 0 for update skip locked;
    if not found then
        return null;
    end if;
    update oncely.locks as k set since = at where k.name = 'count_letters' and k.pid = 0;
    -- Uses one snapshot: a row of growth is seen, and removed, exactly where its letters are.
    with counted as (
        select d.tenant, count(*) as letters, sum(d.stored_size) as bytes
        from oncely.dead_letters as d
        where d.stored_size > 0
        group by d.tenant
    ), left_out as (
        select d.tenant, count(*) as letters
        from oncely.dead_letters as d
        where d.omitted = 'quota' and d.state in ('waiting', 'requeueing')
        group by d.tenant
    ), waiting as (
        select e.tenant, count(*) as events,
            sum(octet_length(e.payload)::bigint + coalesce(pg_column_size(e.headers), 0)) as bytes
        from oncely.events as e
        group by e.tenant
    ), gone as (
        delete from oncely.letter_growth
    )
    insert into oncely.letter_usage as u (tenant, letters, bytes, left_out, events, event_bytes, counted_at)
    select tenant, coalesce(c.letters, 0), coalesce(c.bytes, 0), coalesce(l.letters, 0), coalesce(w.events, 0),
        coalesce(w.bytes, 0), at
    from counted as c
    full join left_out as l using (tenant)
    full join waiting as w using (tenant)
    on conflict (tenant) do update
    set letters = excluded.letters, bytes = excluded.bytes, left_out = excluded.left_out, events = excluded.events,
        event_bytes = excluded.event_bytes, counted_at = excluded.counted_at;
    delete from oncely.letter_usage as u where u.counted_at <> at;
    -- A tenant that is about to run out of room gets some from closed letters: a thousand a time, oldest first.
    room := 0;
    for crowded in
        select u.tenant
        from oncely.letter_usage as u
        left join oncely.tenant_limits as l on l.tenant = u.tenant
        where u.letters >= coalesce(l.letters, count_letters.letters) * 0.9
            or u.bytes >= coalesce(l.letter_bytes, count_letters.letter_bytes) * 0.9
    loop
        with closed as materialized (
            select d.tenant, d.id
            from oncely.dead_letters as d
            where d.tenant = crowded and d.state in ('requeued', 'discarded') and d.stored_size > 0
            order by d.updated_at
            limit 1000
            for update skip locked
        )
        update oncely.dead_letters as d
        set body = null, encrypted_by = null, headers = null, omitted = 'room'
        from closed as c
        where d.tenant = crowded and d.tenant = c.tenant and d.id = c.id;
        get diagnostics emptied = row_count;
        room := room + emptied;
    end loop;
    return room;
end
$$;
comment on function oncely.count_letters is
    'Counts what is stored of each tenant''s dead letters, given what a tenant may have stored by default, and which '
    'events wait. Where a tenant has used nine tenths of its room for letters, a thousand of its closed letters lose '
    'their message; returns of how many that is. Null where another session is counting.';
revoke execute on function oncely.count_letters from public;
