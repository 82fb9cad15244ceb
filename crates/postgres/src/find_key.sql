-- Returns the state of a key. Without a tenant, takes identities from the audit table's index on the key's hash, and
-- from keys that are not completed. Omits the handler's response, which an auditor may not read.
select tenant as "tenant!", consumer as "consumer!", key as "key!", status as "status!", attempts as "attempts!", created_at as "created_at!",
    completed_at, expires_at, fingerprint, null::text as response, http_status, reason, last_error, not_before, owner, fencing_token,
    null::text as steps
from oncely.find_key($1, $2, $3)
