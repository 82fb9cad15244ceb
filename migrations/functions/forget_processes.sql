-- Removes processes by hand: a host that is gone for good has no successor.
create or replace function oncely.forget_processes(host text, name text, pid integer, os_user text, reason text)
returns bigint
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
    -- A living process writes its row every few seconds.
    silent_since timestamptz := clock_timestamp() - interval '12 seconds';
    gone bigint;
begin
    delete from oncely.processes as p
    where p.last_seen_at < silent_since
      and (forget_processes.host is null or p.host = forget_processes.host)
      and (forget_processes.name is null or p.name = forget_processes.name)
      and (forget_processes.pid is null or p.pid = forget_processes.pid);
    get diagnostics gone = row_count;
    if gone > 0 then
        perform oncely.record_action(
            '', 'forget processes',
            jsonb_strip_nulls(jsonb_build_object(
                'host', forget_processes.host, 'name', forget_processes.name, 'pid', forget_processes.pid
            )), gone, forget_processes.reason, forget_processes.os_user
        );
    end if;
    return gone;
end
$$;
comment on function oncely.forget_processes is
    'Removes the rows of silent processes, where null matches any; returns how many. One that lives after all writes '
    'its row again. Recorded in operator_actions. For operators.';
revoke execute on function oncely.forget_processes from public;
