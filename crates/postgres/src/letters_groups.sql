-- Groups dead letters by cause: the newest 100,000 that match. A null parameter turns its filter off.
select consumer as "consumer!", failure_group as "failure_group!", reason as "reason!", error_code, detail, waiting as "waiting!",
    requeueing as "requeueing!", requeued as "requeued!", discarded as "discarded!", came_back as "came_back!", first_at as "first_at!",
    last_at as "last_at!"
from oncely.list_letter_groups(
    of_tenant => $1, of_consumer => $2, of_queue => $3, of_reason => $4, of_group => $5, of_key => $6, since => $7, until => $8, most => $9
)
