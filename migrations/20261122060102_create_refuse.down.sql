set local search_path = pg_catalog, pg_temp;

alter table oncely.audit drop constraint audit_outcome;
do $$
declare
    partition regclass;
begin
    for partition in select inhrelid::regclass from pg_inherits where inhparent = 'oncely.audit'::regclass loop
        execute format('alter table %s drop constraint if exists audit_outcome', partition);
    end loop;
end
$$;
-- Not valid: refusals that were recorded meanwhile stay.
alter table oncely.audit add constraint audit_outcome
    check (outcome in ('completed', 'duplicate', 'retried', 'dead_lettered')) not valid;
comment on column oncely.audit.outcome is 'completed, duplicate (listed only where audit.duplicates = true), retried or dead_lettered.';
comment on column oncely.idempotency_keys.reason is 'FAILED: the stable reason code, as in the header x-oncely-reason.';
create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
as $$
    select case
        when code = 'ONC01' then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H') or left(code, 2) in ('08', '57', '53', '54', '58', '42', '3F', '3D', '28', 'XX', 'F0')
            then 'environment'
        when left(code, 2) = '22' then 'poison'
        else 'transient'
    end
$$;
drop function oncely.refuse(text);
