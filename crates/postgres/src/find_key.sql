-- What is known of a key. Without a tenant the identities come from the audit table's index on the key's hash, and from the keys that are not
-- completed. Not what a handler answered: an auditor may not read that.
select tenant as "tenant!", consumer as "consumer!", key as "key!", status as "status!", attempts as "attempts!", created_at as "created_at!",
    completed_at, expires_at, fingerprint, null::text as response, http_status, reason, last_error, not_before, owner, fencing_token,
    null::text as steps
from oncely.find_key($1, $2, $3)
