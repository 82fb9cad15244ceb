-- Counts and hashes the rows of the trail from $1 to $2, by the same rule as oncely.audit_digest, which seals use.
select coalesce(sum(s.row_count), 0)::bigint as "rows!",
    sha256(coalesce(string_agg(s.digest, ''::bytea order by s.second), ''::bytea)) as "digest!"
from (
    select r.second, count(*) as row_count, sha256(string_agg(r.digest, ''::bytea order by r.digest)) as digest
    from (
        select date_trunc('second', a.occurred_at) as second,
            sha256(convert_to(rtrim(a::text, ',)'), 'UTF8')) as digest
        from oncely.audit as a
        where a.occurred_at >= $1 and a.occurred_at < $2
    ) as r
    group by r.second
) as s
