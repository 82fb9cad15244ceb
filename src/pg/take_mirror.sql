-- Takes the oldest records that no other relay holds. Never "id > last": ids commit out of order.
select tenant, id, tags, consumer, key, fingerprint, expires_at, created_at
from oncely.outbox
where kind in ('mirror', 'identity')
order by created_at
limit $1
for update skip locked
