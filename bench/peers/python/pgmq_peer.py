"""PGMQ as its README and the pages "Clients" and "Transactions" of its Python client say: batches are sent, read with a
visibility timeout and deleted; the delete commits with the payments, on the same connection. A queue has no keys, so the payments
have a unique index.
"""

import asyncio
import os
import signal

import aio_pika
import orjson
from pgmq import AsyncPGMQueue, install_pgmq_from_sql

QUEUE = "payments"
PREFETCH = 1000
BATCH = 500
READERS = 2
# Messages that wait in PGMQ: without a bound the whole queue would be moved there.
BACKLOG = 2000
VISIBILITY = 30

INSERT = """
    insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
    select * from unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::bigint[])
    on conflict do nothing
"""
COLUMNS = ["tenant", "key", "customer", "amount", "currency", "sent_at"]


class Backlog:
    """How many messages wait in PGMQ."""

    def __init__(self):
        self.size = 0
        self.room = asyncio.Event()
        self.room.set()

    def change(self, by):
        self.size += by
        if self.size < BACKLOG:
            self.room.set()
        else:
            self.room.clear()


async def send(pgmq, waiting, backlog):
    """Moves messages from RabbitMQ to PGMQ; acknowledges them when that is committed."""
    while True:
        taken = [await waiting.get()]
        while len(taken) < BATCH and not waiting.empty():
            taken.append(waiting.get_nowait())
        await backlog.room.wait()
        payments = [
            {"tenant": message.headers["x-tenant-id"], "key": message.message_id, **orjson.loads(message.body)}
            for message in taken
        ]
        await pgmq.send_batch(QUEUE, payments)
        backlog.change(len(taken))
        await taken[-1].ack(multiple=True)


async def pay(pgmq, backlog):
    """Inserts payments and deletes their messages."""
    while True:
        messages = await pgmq.read_with_poll(QUEUE, vt=VISIBILITY, qty=BATCH, max_poll_seconds=5)
        # A batch of one comes without a list.
        messages = messages if isinstance(messages, list) else [messages] if messages else []
        if not messages:
            continue
        columns = [[message.message[column] for message in messages] for column in COLUMNS]
        async with pgmq.pool.acquire() as connection, connection.transaction():
            await connection.execute(INSERT, *columns)
            await pgmq.delete_batch(QUEUE, [message.msg_id for message in messages], conn=connection)
        backlog.change(-len(messages))


async def main():
    install_pgmq_from_sql(dsn=os.environ["DATABASE_URL"])
    pgmq = AsyncPGMQueue(vt=VISIBILITY, init_extension=False)
    await pgmq.init()
    await pgmq.create_queue(QUEUE)

    backlog, waiting = Backlog(), asyncio.Queue()
    connection = await aio_pika.connect(os.environ["AMQP_URL"])
    channel = await connection.channel()
    await channel.set_qos(prefetch_count=PREFETCH)
    queue = await channel.get_queue(os.environ["QUEUE"], ensure=False)
    await queue.consume(waiting.put)

    end = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end.set)
    work = [send(pgmq, waiting, backlog), *(pay(pgmq, backlog) for _ in range(READERS))]
    tasks = [asyncio.create_task(task) for task in [end.wait(), *work]]
    done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in done:
        task.result()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await connection.close()
    await pgmq.close()


asyncio.run(main())
