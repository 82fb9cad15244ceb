-- Runs a handler on a batch, part by part, each in a subtransaction; in a part that fails each message by itself.
select p.seq as "seq!", p.response::text as response, p.error_code, p.error_message, p.error_place
from oncely.handle_parts($1, $2, $4, $3::oncely.message[]) as p
