-- Lists the keys that stored bodies are encrypted by: up to a hundred, each by a probe of the index, with the number of
-- letters, up to 10,000.
with recursive ids as (
    select min(d.encrypted_by) as key, 1 as place from oncely.dead_letters as d
    where d.encrypted_by is not null and d.body is not null
    union all
    select n.key, i.place + 1 from ids as i
    cross join lateral (
        select min(d.encrypted_by) as key from oncely.dead_letters as d
        where d.encrypted_by is not null and d.body is not null and d.encrypted_by > i.key
    ) as n
    where i.key is not null and i.place < 100
)
select i.key as "key!", c.letters as "letters!"
from ids as i
cross join lateral (
    select count(*) as letters
    from (
        select 1 from oncely.dead_letters as d
        where d.encrypted_by = i.key and d.encrypted_by is not null and d.body is not null limit 10000
    ) as f
) as c
where i.key is not null
order by i.key
