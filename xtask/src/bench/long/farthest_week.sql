-- Removes the farthest week ahead, which is empty: the relay makes it again, as it makes a new one each week.
do $$
declare
    farthest text;
begin
    select max(c.relname) into farthest
    from pg_inherits as i
    join pg_class as c on c.oid = i.inhrelid
    where i.inhparent = 'oncely.audit'::regclass and c.relname ~ '^audit_[0-9]{8}$'
      and to_date(right(c.relname, 8), 'YYYYMMDD') > current_date;
    execute format('drop table oncely.%I', farthest);
end
$$
