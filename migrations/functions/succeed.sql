-- Removes the row of a process that was killed and restarted: its successor has the same host and the same name.
-- Removes one for one: where two were killed and one came back, the other is still missed.
create or replace function oncely.succeed(id uuid, at timestamptz) returns void
language plpgsql volatile
set search_path = pg_catalog, pg_temp
as $$
declare
    killed uuid;
begin
    select o.id into killed
    from oncely.processes as n
    join oncely.processes as o on o.login = n.login and o.kind = n.kind and o.host = n.host and o.name = n.name
    where n.id = succeed.id and not n.has_succeeded and n.started_at > o.last_seen_at
      and o.last_seen_at < succeed.at - interval '12 seconds'
      and jsonb_path_query_array(o.consumers, '$[*].consumer')
          = jsonb_path_query_array(n.consumers, '$[*].consumer')
    order by o.last_seen_at desc
    limit 1
    for update of o skip locked;
    if found then
        delete from oncely.processes as p where p.id = killed;
        update oncely.processes as p set has_succeeded = true where p.id = succeed.id;
    end if;
end
$$;
comment on function oncely.succeed is
    'Removes the row of a silent process whose place another has taken. For oncely.beat.';
revoke execute on function oncely.succeed from public;
