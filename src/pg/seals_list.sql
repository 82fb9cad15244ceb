-- Seals after a place of the chain ($1), each compared with what it must hold: the hash of itself, and that of the one before it.
select s.place, s.kind, s.from_time, s.until_time, s.row_count, s.digest, s.hash, s.hash = oncely.seal_hash(s) as "is_whole!",
    case when s.place = 1 then s.previous = '' else coalesce(s.previous = b.hash, false) end as "is_linked!"
from oncely.audit_seals as s
left join oncely.audit_seals as b on b.place = s.place - 1
where s.place > $1
order by s.place
limit $2
