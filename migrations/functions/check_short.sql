create or replace function oncely.check_short(queue text, worker text, trace_id text) returns void
language plpgsql immutable
set search_path = pg_catalog, pg_temp
as $$
begin
    if greatest(octet_length(queue), octet_length(worker), octet_length(trace_id)) > 255 then
        raise exception using errcode = 'ONC11', message = 'oncely: queue, worker and trace_id have 255 bytes at most';
    end if;
end
$$;
comment on function oncely.check_short is 'Refuses a name for the trail that is too long (SQLSTATE ONC11).';
