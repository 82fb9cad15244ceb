set local search_path = pg_catalog, pg_temp;

-- Every time of every table that came after the first bounds.
do $$
declare
    name text;
    times text;
begin
    for name, times in
        select c.relname, string_agg(format('%I', a.attname), ', ' order by a.attnum)
        from pg_class as c
        join pg_attribute as a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped
        where c.relnamespace = 'oncely'::regnamespace and c.relkind in ('r', 'p') and not c.relispartition
          and c.relname <> '_sqlx_migrations' and a.atttypid = 'timestamptz'::regtype
          and not exists (select from pg_constraint as k where k.conrelid = c.oid and k.conname = c.relname || '_times')
        group by c.relname
    loop
        execute format(
            'alter table oncely.%I add constraint %I '
            'check (least(%s) >= ''1970-01-01 00:00:00+00'' and greatest(%s) <= ''9999-12-31 00:00:00+00'') not valid',
            name, name || '_times', times, times
        );
    end loop;
end
$$;
