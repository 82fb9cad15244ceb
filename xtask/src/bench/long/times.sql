-- Effects committed from $2 to $3, with numbers above $1: how many, the highest number, and how long they took from publish to commit,
-- in milliseconds. The time of the commit is the one that the cases latency_... use: it costs no WAL, and the rows of a minute lie together.
-- (A time in the row of the effect would be taken before the rest of its transaction.)
select count(*) as effects, max(e.id) as highest,
    coalesce(percentile_disc(0.5) within group (order by e.took), 0)::double precision as p50,
    coalesce(percentile_disc(0.99) within group (order by e.took), 0)::double precision as p99
from (
    select p.id, t.committed_at, extract(epoch from t.committed_at) * 1000 - p.sent_at / 1000.0 as took
    from bench.payments as p
    cross join lateral (select pg_xact_commit_timestamp(p.xmin) as committed_at) as t
    where p.id > $1
) as e
where e.committed_at >= $2 and e.committed_at < $3
