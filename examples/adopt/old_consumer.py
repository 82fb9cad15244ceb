"""A consumer as there are many, before Oncely: it works, notes the message in a table of its own, commits, and acknowledges."""

import json
import os
import sys

import pika
import psycopg

QUEUE = sys.argv[1]

sql = psycopg.connect(os.environ["DATABASE_URL"], application_name="old_consumer.py")


def handle(channel, method, properties, body: bytes) -> None:
    tenant, key = (properties.headers or {}).get("x-tenant-id"), properties.message_id
    if tenant is None or key is None:
        channel.basic_reject(method.delivery_tag, requeue=False)  # Nobody hears of it again.
        return
    known = sql.execute("select from shop.processed where tenant = %s and message_id = %s", (tenant, key))
    if known.rowcount == 0:
        order = json.loads(body)
        sql.execute(
            "insert into shop.effects (tenant, order_id, cents, writer) values (%s, %s, %s, 'old')",
            (tenant, order["order"], order["cents"]),
        )
        sql.execute(
            "insert into shop.processed (tenant, message_id, processed_at) values (%s, %s, now())", (tenant, key)
        )
    sql.commit()
    channel.basic_ack(method.delivery_tag)


broker = pika.BlockingConnection(pika.URLParameters(os.environ["AMQP_URL"]))
channel = broker.channel()
channel.basic_qos(prefetch_count=50)
channel.basic_consume(QUEUE, handle)
print("consuming", flush=True)
channel.start_consuming()
