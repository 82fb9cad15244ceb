set local search_path = pg_catalog, pg_temp;

-- Only a mirror entry is not made of them.
delete from oncely.outbox where octet_length(fingerprint) <> 32;
alter table oncely.outbox
    drop constraint outbox_identity,
    add constraint outbox_identity check (
        (kind = 'identity') = (consumer is not null) and (kind = 'identity') = (key is not null)
        and (kind = 'mirror') = (tags is not null)
        and octet_length(tenant) between 1 and 255
        and octet_length(consumer) between 1 and 255
        and octet_length(key) between 1 and 255
        and octet_length(fingerprint) = 32
    );
alter table oncely.idempotency_keys drop constraint idempotency_keys_bounds;
do $$
declare
    name text;
begin
    for name in
        select c.relname from pg_class as c join pg_constraint as k on k.conrelid = c.oid and k.conname = c.relname || '_times'
        where c.relnamespace = 'oncely'::regnamespace and not c.relispartition
    loop
        execute format('alter table oncely.%I drop constraint %I', name, name || '_times');
    end loop;
end
$$;
drop function oncely.bounded(timestamptz);
