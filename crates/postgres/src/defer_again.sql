-- There is no "set constraints … to default". A name stands for all constraints that have it in its schema.
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
