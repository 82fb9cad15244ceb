-- One bounded batch of keys that say themselves when they may go (oncely.claim), of whatever consumer.
-- Never one whose mirror record may still be pending, as in sweep_completed.sql.
delete from oncely.idempotency_keys
where ctid = any (array(
    select ctid
    from oncely.idempotency_keys
    where expires_at < $1
      and (status <> 'COMPLETED' or completed_at < coalesce((select min(created_at) from oncely.outbox), 'infinity'))
    order by expires_at
    limit $2
    for update skip locked
))
