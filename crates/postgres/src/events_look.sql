-- Returns whether any event may be due: one without an ordering key is, or one has an ordering key. The order keeps
-- each part on its index, whatever a plan was made for; in an exists, PostgreSQL would drop it.
select coalesce(
    (
        select true from oncely.events
        where state = 'pending' and ordering_key is null and available_at <= $1
        order by available_at
        limit 1
    ),
    (
        select true from oncely.events
        where ordering_key is not null
        order by tenant, ordering_key, ordering_number
        limit 1
    ),
    false
) as "any!"
