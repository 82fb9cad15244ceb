-- One bounded batch of keys whose retry never came back: first claimed before $2, and no retry can be older.
delete from oncely.idempotency_keys
where ctid = any (array(
    select ctid
    from oncely.idempotency_keys
    where status = 'IN_PROGRESS' and consumer = $1 and expires_at is null and created_at < $2
    order by created_at
    limit $3
    for update skip locked
))
