-- Lists the seals after place $1 of the chain, and compares each with its rule: its own hash (as in oncely.seal_hash,
-- which is not called: a login that can change rows may have changed it), the previous seal's hash, and possible times.
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
