"""Writes one invoice for each order, however often its event comes: claim, work and complete are one transaction."""

import hashlib
import json
import os

import pika
import psycopg
from psycopg.types.json import Json

CONSUMER = "invoices.py"  # Part of the identity: choose it once.
QUEUE = "shop.invoices.py"
DELAY = 5  # Seconds until a message that failed runs again.
PROPERTIES = (
    "content_type content_encoding delivery_mode priority correlation_id reply_to expiration message_id timestamp type user_id app_id"
).split()

# Autocommit, so that a transaction is where a "with sql.transaction()" is, and nowhere else.
sql = psycopg.connect(os.environ["DATABASE_URL"], application_name="consumer.py", autocommit=True)
sql.execute("set lock_timeout = '10s'")  # For the work's own statements: oncely.claim waits for 100 ms, whatever is set.
sql.execute("set idle_in_transaction_session_timeout = '60s'")  # A process that hangs must not hold its key.


# ANCHOR: handle
def handle(channel, method, properties, body: bytes) -> None:
    tenant, key = (properties.headers or {}).get("x-tenant-id"), properties.message_id
    identity = (tenant, CONSUMER, key, hashlib.sha256(body).digest())
    attempt, error, is_stored = 0, None, False
    try:
        with sql.transaction():
            outcome, attempt = sql.execute("select outcome, attempt from oncely.claim(%s, %s, %s, %s)", identity).fetchone()
            if outcome == "granted":
                sql.execute(
                    """insert into shop.invoices (tenant, order_id, cents)
                    select %s, event ->> 'order', (event ->> 'cents')::bigint
                    from (select convert_from(%s, 'UTF8')::jsonb as event) as e""",
                    (tenant, body),
                )
                sql.execute("select oncely.complete(%s, %s, %s, queue => %s)", (tenant, CONSUMER, key, QUEUE))
    except psycopg.Error as failure:
        if sql.closed:
            # Nobody knows whether the COMMIT happened: neither acknowledged nor rejected. The process ends, the message comes
            # again, and its claim tells.
            raise
        if failure.sqlstate == "ONC11":
            outcome = "invalid"  # No tenant or no key: it will never have one.
        elif failure.sqlstate in ("55P03", "40P01", "ONC17"):
            outcome = "retry"  # Somebody holds the key, or a deadlock: nobody's failure. Or another cell's tenant, once there are cells.
        else:
            outcome, error = "failed", failure
    if outcome in ("failed", "given_up", "conflict"):
        outcome, is_stored = fail(identity, attempt, error, method, properties, body)
    # Only now: what was granted is known to be committed.
    if outcome in ("granted", "duplicate") or is_stored:
        channel.basic_ack(method.delivery_tag)
    elif outcome == "retry":
        wait(properties, body)
        channel.basic_ack(method.delivery_tag)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)  # To the dead-letter queue.


def fail(identity, attempt: int, error, method, properties, body: bytes):
    """Counts the failure of a message whose work was rolled back. One that is given up becomes a dead letter in the same transaction,
    and this row is the message from then on: `oncely failed requeue` publishes it to the queue again."""
    # The kind of the error alone: PostgreSQL's text may hold what the message held, and the trail keeps what it is told.
    said = f"{type(error).__name__} (SQLSTATE {error.sqlstate})" if error else None
    return sql.execute(
        """select outcome, stored from oncely.fail(
            %s, %s, %s, %s, %s, %s, error_code => %s, delay => make_interval(secs => %s), queue => %s, body => %s,
            properties => %s, headers => %s, exchange => %s, routing_key => %s)""",
        (
            *identity, attempt, said, error.sqlstate if error else None, DELAY, QUEUE, body,
            Json({name: getattr(properties, name) for name in PROPERTIES}),
            Json(properties.headers or {}, dumps=lambda headers: json.dumps(headers, default=str)),
            method.exchange, method.routing_key,
        ),
    ).fetchone()  # fmt: skip


def wait(properties, body: bytes) -> None:
    """Puts a copy into the delay queue, from where it comes back; the others go on meanwhile. A crash before the acknowledgement leaves
    a copy too many, which is a duplicate."""
    properties.user_id = properties.expiration = None  # The broker takes a user's own name only.
    delayed.basic_publish("", QUEUE + ".wait", body, properties, mandatory=True)
# ANCHOR_END: handle


def main() -> None:
    global delayed
    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel, delayed = broker.channel(), broker.channel()
    delayed.confirm_delivery()
    channel.exchange_declare("shop", "topic", durable=True)
    quorum = {"x-queue-type": "quorum"}
    channel.queue_declare(QUEUE + ".dead", durable=True, arguments=quorum)
    back = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE}
    channel.queue_declare(QUEUE + ".wait", durable=True, arguments={**quorum, **back, "x-message-ttl": DELAY * 1000})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE + ".dead"}
    channel.queue_declare(QUEUE, durable=True, arguments={**quorum, **dead})
    channel.queue_bind(QUEUE, "shop", "order.placed")
    channel.basic_qos(prefetch_count=20)
    channel.basic_consume(QUEUE, handle)
    print("consuming", flush=True)
    channel.start_consuming()


main()
