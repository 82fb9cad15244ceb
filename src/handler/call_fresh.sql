-- Claims, runs and records a whole batch, or fails as a whole: as unique_violation on the keys where somebody has one.
select f.seqs, f.responses as "responses: Vec<Option<Value>>"
from oncely.handle_fresh($1, $2, $3::oncely.message[], $4, $5, $6, $7, $8, $9, $10, $11) as f
