-- One bounded batch of keys that took effect before $2, through the partial index. By ctid, because that is seven times
-- cheaper than by key; in a file of its own, because Citus needs the form by key.
-- Never a key whose mirror record may still be pending: nothing that is not older than the oldest record of the outbox.
delete from oncely.idempotency_keys
where ctid = any (array(
    select ctid
    from oncely.idempotency_keys
    where status = 'COMPLETED' and consumer = $1 and expires_at is null
      and completed_at < least($2, (select min(created_at) from oncely.outbox))
    order by completed_at
    limit $3
    for update skip locked
))
