-- Runs a handler on a batch in parts, each in a subtransaction; a part that fails is divided, down to single messages.
select array_agg(p.seq) as "seqs!: Vec<i32>",
    case when count(p.response) > 0 then oncely.response_texts(array_agg(p.response), $5) end
        as "responses: Vec<Option<String>>",
    array_agg(p.error_code) as "error_codes!: Vec<Option<String>>",
    array_agg(left(p.error_message, 4096)) as "error_messages!: Vec<Option<String>>",
    array_agg(p.error_place) as "error_places!: Vec<Option<String>>"
from oncely.handle_parts($1, $2, $4, $3::oncely.message[]) as p
