-- Questions to the trail. The book includes them; a test runs them.
-- ANCHOR: audit
select * from oncely.processed_keys where tenant = 'acme' and processed_at > now() - interval '1 hour';

select tenant, key, reason, detail
from oncely.dead_letters where state = 'waiting' order by dead_lettered_at desc limit 20;

select outcome, reason, count(*) from oncely.audit where occurred_at > now() - interval '1 day' group by 1, 2;

-- By key, through an index of 8 bytes a row:
select * from oncely.audit where hashtextextended(key, 0) = hashtextextended('order-1182', 0) and key = 'order-1182';
-- ANCHOR_END: audit
