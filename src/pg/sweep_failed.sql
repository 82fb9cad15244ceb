-- One bounded batch of keys that were given up before $2.
delete from oncely.idempotency_keys
where ctid = any (array(
    select ctid
    from oncely.idempotency_keys
    where status = 'FAILED' and consumer = $1 and expires_at is null and completed_at < $2
    order by completed_at
    limit $3
    for update skip locked
))
