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
drop function oncely.refuse(text);
