-- Takes the oldest records that no other relay holds. Never "id > last": ids commit out of order.
select tenant, id, tags, consumer, key, fingerprint,
    greatest(least(expires_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "expires_at!",
    greatest(least(created_at, '9999-12-31 00:00:00+00'), '1970-01-01 00:00:00+00') as "created_at!"
from oncely.mirror_queue
where kind in ('mirror', 'identity')
order by created_at
limit $1
for update skip locked
