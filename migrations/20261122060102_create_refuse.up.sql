set local search_path = pg_catalog, pg_temp;

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

-- A client of the SQL protocol that tells oncely.fail of a refusal wants it given up. One that takes it for an answer completes its
-- claim with it as the response.
create or replace function oncely.error_class(code text) returns text
language sql immutable parallel safe
as $$
    select case
        when code in ('ONC01', 'ONC07') then 'handler_rejected'
        when code = 'ONC02' then 'invalid_json'
        when code in ('ONC04', 'ONC05', 'ONC11', 'ONC15') then 'poison'
        when code = '57014' then 'transient'
        when code in ('25006', '2200H', 'ONC16') or left(code, 2) in ('08', '57', '53', '58', '42', '3F', '3D', '28', 'XX', 'F0')
            then 'environment'
        when left(code, 2) in ('22', '54') then 'poison'
        else 'transient'
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
