-- Runs a handler on each message in a subtransaction of its own. The caller supplies bodies as jsonb.
select array_agg(e.seq) as "seqs!: Vec<i32>",
    case when count(e.response) > 0 then oncely.response_texts(array_agg(e.response), $5) end
        as "responses: Vec<Option<String>>",
    array_agg(e.error_code) as "error_codes!: Vec<Option<String>>",
    array_agg(left(e.error_message, 4096)) as "error_messages!: Vec<Option<String>>",
    array_agg(e.error_place) as "error_places!: Vec<Option<String>>"
from oncely.handle_each($1, $2, $4, $3::oncely.message[]) as e
