select is_claimed as "is_claimed!", status, known_fingerprint, attempts, crash_attempts, reason, last_error, error_code,
    not_before, is_leased, is_running, http_status, http_headers, http_body, response
from oncely.claim_request($1, $2, $3, $4, $5)
