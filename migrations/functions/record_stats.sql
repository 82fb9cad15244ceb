-- Records a span's stats. A repeated call replaces the row: a process repeats it after a lost reply. A user that comes
-- and goes under new ids writes for a hundred processes in a span, as many as it may have.
create or replace function oncely.record_stats(process uuid, at timestamptz, consumers jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_stats(record_stats.process, record_stats.at);
    if (
        select count(distinct s.process)
        from oncely.stats as s
        where s.at = record_stats.at and s.login = session_login and s.process <> record_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.stats as s (
        at, consumer, process, delivered, completed, refused, duplicates, retried, postponed, dead_lettered, fallbacks,
        outages, durations, login
    )
    select record_stats.at, c.consumer, record_stats.process, c.delivered, c.completed, c.refused, c.duplicates,
        c.retried, c.postponed, c.dead_lettered, c.fallbacks, c.outages, c.durations, session_login
    from jsonb_to_recordset(record_stats.consumers) as c (
        consumer text, delivered bigint, completed bigint, refused bigint, duplicates bigint, retried bigint,
        postponed bigint, dead_lettered bigint, fallbacks bigint, outages bigint, durations bigint[]
    )
    -- A name that no worker has registered would add an unwanted row.
    where exists (select from oncely.consumers as k where k.consumer = c.consumer)
    on conflict (at, consumer, process) do update
    set delivered = excluded.delivered, completed = excluded.completed, refused = excluded.refused,
        duplicates = excluded.duplicates, retried = excluded.retried, postponed = excluded.postponed,
        dead_lettered = excluded.dead_lettered, fallbacks = excluded.fallbacks, outages = excluded.outages,
        durations = excluded.durations;
end
$$;
comment on function oncely.record_stats is
    'Writes what the consumers of a process did in a span of ten seconds; again for the same span, the last word '
    'counts.';
revoke execute on function oncely.record_stats from public;
