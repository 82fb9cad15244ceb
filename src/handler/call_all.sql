-- Runs a handler on a whole batch: the first failure ends the statement. A body that jsonb refuses fails it, too. The answers come
-- as one row: hundreds of rows cost the client more than what is in them. No responses at all where no message has one.
select array_agg(a.seq) as seqs,
    case when count(a.response) > 0 then array_agg(a.response) end as "responses: Vec<Option<Value>>"
from oncely.handle_all($1, $2, $3::oncely.message[]) as a
