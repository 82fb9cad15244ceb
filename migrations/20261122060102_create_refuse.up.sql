-- A business "no" (sold out, account closed) is no failure: nothing is to be mended, and nobody requeues it. It is recorded like an
-- effect, with its answer, and makes no dead letter.
create function oncely.refuse(reason text) returns void
language plpgsql
as $$
begin
    raise exception using errcode = 'ONC07', message = coalesce(reason, '');
end
$$;
comment on function oncely.refuse(text) is 'For handlers: no, and that is the answer. Rolls back what the handler wrote for this message (SQLSTATE ONC07); the key is completed with the response {"refused": reason}, which a duplicate gets again, and the message is acknowledged.';

do $$
begin
    if exists (select from pg_roles where rolname = 'oncely_worker') then
        grant execute on function oncely.refuse(text) to oncely_worker;
    end if;
end
$$;

comment on column oncely.idempotency_keys.reason is 'FAILED: the stable reason code, as in the header x-oncely-reason. COMPLETED: refused where the handler said no, and the response says why.';
comment on column oncely.audit.outcome is 'completed, refused (the handler said no, and that is the answer), duplicate (listed only where audit.duplicates = true), retried or dead_lettered.';

-- What a partition has of its own outlives what it inherits.
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
-- Not valid: all that is there keeps the narrower rule, and reading months of rows would stop every worker meanwhile.
alter table oncely.audit add constraint audit_outcome
    check (outcome in ('completed', 'refused', 'duplicate', 'retried', 'dead_lettered')) not valid;
