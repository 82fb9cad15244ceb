-- Runs a handler on a batch in parts, each in a subtransaction; a part that fails is divided, down to single messages.
select p.seq as "seq!", p.response::text as response, p.error_code, p.error_message, p.error_place
from oncely.handle_parts($1, $2, $4, $3::oncely.message[]) as p
