-- Defers constraints again (no "set constraints … to default" exists). A name means all so named in its schema.
do $$
declare
    names text;
begin
    select string_agg(distinct format('%I.%I', n.nspname, c.conname), ', ') into names
    from pg_constraint as c
    join pg_namespace as n on n.oid = c.connamespace
    where c.condeferred;
    if names is not null then
        execute 'set constraints ' || names || ' deferred';
    end if;
end
$$
