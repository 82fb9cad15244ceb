"""Charges one order at a payment provider, by a lease: killed at any moment and run again, it charges once.

A consumer would call take() for each delivery, as consumer.py calls handle(); here the order is an argument.
"""

import os
import sys
import time
import uuid

import psycopg
from psycopg.rows import dict_row
from psycopg.types.json import Jsonb


class Provider:
    """Stands for a payment provider: it has books of its own, and knows an idempotency key again."""

    def __init__(self, url: str) -> None:
        self.books = psycopg.connect(url, autocommit=True, row_factory=dict_row)

    def charge(self, order: str, idempotency_key: str) -> dict:
        charge = self.books.execute(
            "insert into shop.provider_books (idempotency_key, order_id) values (%s, %s)"
            " on conflict (idempotency_key) do update set calls = shop.provider_books.calls + 1 returning id",
            (idempotency_key, order),
        ).fetchone()
        # The answer takes a while: a good moment to be killed in.
        time.sleep(float(os.environ.get("PROVIDER_DELAY", "0")))
        return {"charge": charge["id"]}


# ANCHOR: take
def take(connection, provider, tenant: str, order: str, body: bytes) -> str:
    """Charges an order. Returns what to tell the broker: ack, requeue or reject.

    Before a reject, a consumer with a broker calls oncely.fail(…, attempt => 0, body => …, queue => …): where that answers "stored", it
    acknowledges instead, and the message waits as a dead letter.
    """
    identity = (tenant, "payments", order)
    with connection.transaction():
        claimed = connection.execute(
            "select outcome, token from oncely.claim_lease(%s, %s, %s, sha256(%s), owner => %s)",
            (*identity, body, f"charge.py {uuid.uuid4()}"),
        ).fetchone()
    match claimed["outcome"]:
        case "duplicate":
            return "ack"
        case "in_flight" | "retry":
            return "requeue"
        case "conflict" | "given_up":
            return "reject"
    held = (*identity, claimed["token"])

    with connection.transaction():
        step = connection.execute(
            "select state, result, call_key from oncely.begin_step(%s, %s, %s, %s, 'charge', 'within', '24 hours')",
            held,
        ).fetchone()
    match step["state"]:
        case "run" | "repeat":
            charge = provider.charge(order, idempotency_key=str(step["call_key"]))
            with connection.transaction():
                connection.execute("select oncely.checkpoint(%s, %s, %s, %s, 'charge', %s)", (*held, Jsonb(charge)))
        case "done":
            charge = step["result"]
        case "unknown":
            with connection.transaction():
                connection.execute(
                    "select oncely.fail_lease(%s, %s, %s, %s, 'it may have been charged', 'outcome_unknown')", held
                )
            return "reject"

    with connection.transaction():
        outcome = connection.execute("select oncely.complete_lease(%s, %s, %s, %s) as outcome", held).fetchone()["outcome"]
        if outcome == "completed":
            connection.execute(
                "insert into shop.payments (tenant, order_id, charge) values (%s, %s, %s)", (tenant, order, Jsonb(charge))
            )
    return "ack"
# ANCHOR_END: take


def main() -> None:
    url, order = os.environ["DATABASE_URL"], sys.argv[1]
    with psycopg.connect(url, autocommit=True, row_factory=dict_row) as connection:
        print(take(connection, Provider(url), "acme", order, f'{{"order": "{order}"}}'.encode()), flush=True)


main()
