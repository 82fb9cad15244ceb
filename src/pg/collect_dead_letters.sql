-- One bounded batch of letters that were requeued or discarded before $1. Never one that waits, and never one whose queue
-- has not been gone through since: its copy there would be a stranger's. By key: the relay may not read the rest of a row.
delete from oncely.dead_letters as d
using (
    select tenant, id
    from oncely.dead_letters
    where state in ('requeued', 'discarded') and updated_at < $1 and swept_at is not null
    order by updated_at
    limit $2
    for update skip locked
) as old
where d.tenant = old.tenant and d.id = old.id
