-- Takes the oldest records that no other relay holds. Never "id > last": ids commit out of order.
select tenant, id, tags, expires_at, created_at
from oncely.outbox
where kind = 'mirror'
order by created_at
limit $1
for update skip locked
