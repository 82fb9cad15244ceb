-- Seals after a place of the chain ($1), each compared with what it must hold: the hash of itself (the rule of oncely.seal_hash, which
-- is not asked: whoever can change rows may have changed it), that of the one before it, and times that it can have.
select s.place, s.kind, s.from_time, s.until_time, s.row_count, s.digest, s.hash,
    s.hash = sha256(convert_to(
        jsonb_build_array(
            'oncely seal 1', s.place, s.kind, s.from_time, s.until_time, s.row_count,
            encode(s.digest, 'hex'), encode(s.previous, 'hex'), s.sealed_at
        )::text, 'UTF8'
    )) as "is_whole!",
    case when s.place = 1 then s.previous = '' else coalesce(s.previous = b.hash, false) end as "is_linked!",
    s.until_time <= s.sealed_at as "is_in_time!",
    s.kind <> 'dropped' or s.until_time <= s.sealed_at - interval '1 day' as "is_past_floor!"
from oncely.audit_seals as s
left join oncely.audit_seals as b on b.place = s.place - 1
where s.place > $1
order by s.place
limit $2
