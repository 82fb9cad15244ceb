-- Runs a handler on a whole batch: the first failure ends the statement. A body that jsonb refuses fails it, too.
select a.seq as "seq!", a.response
from oncely.handle_all($1, $2, $3::oncely.message[]) as a
