"""Writes one invoice for each order, however often its event comes: claim, work and complete are one transaction."""

import hashlib
import os
import time

import pika
import psycopg

CONSUMER = "invoices.py"  # Part of the identity: choose it once.
QUEUE = "shop.invoices.py"

# Autocommit, so that a transaction is where a "with sql.transaction()" is, and nowhere else.
sql = psycopg.connect(os.environ["DATABASE_URL"], application_name="consumer.py", autocommit=True)
sql.execute("set lock_timeout = '10s'")  # For a claim that waits for another process's.


# ANCHOR: handle
def handle(channel, method, properties, body: bytes) -> None:
    tenant, key = (properties.headers or {}).get("x-tenant-id"), properties.message_id
    fingerprint = hashlib.sha256(body).digest()
    attempt = 0
    try:
        with sql.transaction():
            outcome, attempt = sql.execute(
                "select outcome, attempt from oncely.claim(%s, %s, %s, %s)", (tenant, CONSUMER, key, fingerprint)
            ).fetchone()
            if outcome == "granted":
                sql.execute(
                    """insert into shop.invoices (tenant, order_id, cents)
                    select %s, event ->> 'order', (event ->> 'cents')::bigint
                    from (select convert_from(%s, 'UTF8')::jsonb as event) as e""",
                    (tenant, body),
                )
                sql.execute("select oncely.complete(%s, %s, %s, queue => %s)", (tenant, CONSUMER, key, QUEUE))
    except psycopg.Error as error:
        if sql.closed:
            # Nobody knows whether the COMMIT happened: neither acknowledged nor rejected. The process ends, the message comes
            # again, and its claim tells.
            raise
        if error.sqlstate == "ONC11":
            outcome = "invalid"  # No tenant or no key: it will never have one.
        elif error.sqlstate == "ONC17":
            outcome = "elsewhere"
        elif error.sqlstate in ("55P03", "40P01"):
            outcome = "retry"  # Somebody holds the key, or a deadlock: nobody's failure.
        else:
            # The work was rolled back; that it failed is counted.
            outcome, = sql.execute(
                "select outcome from oncely.fail(%s, %s, %s, %s, %s, %s, error_code => %s, queue => %s)",
                (tenant, CONSUMER, key, fingerprint, attempt, str(error), error.sqlstate, QUEUE),
            ).fetchone()
    # Only now: what was granted is known to be committed.
    if outcome in ("granted", "duplicate"):
        channel.basic_ack(method.delivery_tag)
    elif outcome in ("retry", "elsewhere"):  # Too early; or another cell's tenant, once there are cells.
        time.sleep(1)
        channel.basic_nack(method.delivery_tag, requeue=True)
    else:
        channel.basic_nack(method.delivery_tag, requeue=False)  # To the dead-letter queue.
# ANCHOR_END: handle


def main() -> None:
    broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
    channel = broker.channel()
    channel.exchange_declare("shop", "topic", durable=True)
    channel.queue_declare(QUEUE + ".dead", durable=True, arguments={"x-queue-type": "quorum"})
    dead = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE + ".dead"}
    channel.queue_declare(QUEUE, durable=True, arguments={"x-queue-type": "quorum", **dead})
    channel.queue_bind(QUEUE, "shop", "order.placed")
    channel.basic_qos(prefetch_count=20)
    channel.basic_consume(QUEUE, handle)
    print("consuming", flush=True)
    channel.start_consuming()


main()
