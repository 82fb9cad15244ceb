-- Runs a handler on each message in a subtransaction of its own. The caller supplies bodies as jsonb.
select e.seq as "seq!", e.response::text as response, e.error_code, e.error_message, e.error_place
from oncely.handle_each($1, $2, $4, $3::oncely.message[]) as e
