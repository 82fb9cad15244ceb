create or replace function oncely.check_stats(process uuid, at timestamptz) returns void
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
begin
    if not exists (
        select from oncely.processes as p where p.id = check_stats.process and p.login = session_user
    ) then
        raise exception using errcode = 'ONC16', message = 'oncely: this is no process of this user';
    end if;
    if check_stats.at is distinct from date_bin(interval '10 seconds', check_stats.at, timestamptz 'epoch')
        or check_stats.at not between clock_timestamp() - interval '1 hour' and clock_timestamp() + interval '1 minute'
    then
        raise exception using errcode = 'ONC11',
            message = 'oncely: stats are written for the beginning of a span of ten seconds, within the last hour';
    end if;
end
$$;
comment on function oncely.check_stats is
    'Is this a process of the session''s user, and a span that it may write? Internal.';
revoke execute on function oncely.check_stats from public;
