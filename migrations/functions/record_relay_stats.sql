create or replace function oncely.record_relay_stats(process uuid, at timestamptz, targets jsonb) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    session_login constant text := session_user;
begin
    perform oncely.check_stats(record_relay_stats.process, record_relay_stats.at);
    if (
        select count(distinct s.process)
        from oncely.relay_stats as s
        where s.at = record_relay_stats.at and s.login = session_login and s.process <> record_relay_stats.process
    ) >= 100 then
        raise exception using errcode = '53400',
            message = 'oncely: a hundred processes of this user have written this span already';
    end if;
    insert into oncely.relay_stats as s (at, target, process, relayed, failed, parked, records, oldest_age, login)
    select record_relay_stats.at, t.target, record_relay_stats.process, t.relayed, t.failed, t.parked, t.records,
        t.oldest_age, session_login
    from jsonb_to_recordset(record_relay_stats.targets) as t (
        target text, relayed bigint, failed bigint, parked bigint, records bigint, oldest_age double precision
    )
    on conflict (at, target, process) do update
    set relayed = excluded.relayed, failed = excluded.failed, parked = excluded.parked, records = excluded.records,
        oldest_age = excluded.oldest_age;
end
$$;
comment on function oncely.record_relay_stats is
    'Writes what a relay did in a span of ten seconds; again for the same span, the last word counts.';
revoke execute on function oncely.record_relay_stats from public;
