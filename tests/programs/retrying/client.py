"""Sends one order for each key, and leaves all else to urllib3's Retry: what it tells at the end is status and body, one line a key."""

import sys

import urllib3

port, keys = sys.argv[1], sys.argv[2:]
retry = urllib3.Retry(
    total=40, allowed_methods=None, status_forcelist=(409, 503), backoff_factor=0.02, backoff_max=0.2, raise_on_status=True
)
pool = urllib3.PoolManager(retries=retry)
for key in keys:
    answer = pool.request(
        "POST",
        f"http://127.0.0.1:{port}/pay",
        body="{}",
        headers={"Idempotency-Key": key, "X-Tenant": "acme", "Connection": "close"},
    )
    print(answer.status, answer.headers.get("Idempotent-Replayed"), answer.data.decode(), flush=True)
