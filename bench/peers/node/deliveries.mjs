// The messages of a RabbitMQ queue, for all peers: in batches, each acknowledged once the peer has stored it.
import { once } from "node:events";
import amqp from "amqplib";

// Unacknowledged messages at most, and messages that a peer is handed at once.
const PREFETCH = 1000;
const BATCH = 500;

// Jobs that a peer has stored and not finished yet. Without a bound the consumer, which has less to do, would move the whole
// queue into the peer's tables.
export class Backlog {
  #keys = new Set();
  #limit;
  #wake = () => {};

  constructor(limit = 2000) {
    this.#limit = limit;
  }

  add(key) {
    this.#keys.add(key);
  }

  remove(key) {
    this.#keys.delete(key);
    if (this.#keys.size < this.#limit) this.#wake();
  }

  async room() {
    while (this.#keys.size >= this.#limit) await new Promise((wake) => (this.#wake = wake));
  }
}

function toPayment({ content, properties }) {
  return { tenant: properties.headers["x-tenant-id"], key: properties.messageId, ...JSON.parse(content) };
}

// A peer takes a key once in a batch.
function distinct(payments) {
  return [...new Map(payments.map((payment) => [payment.key, payment])).values()];
}

// Hands the messages of the queue to `store` until SIGTERM, then calls `close`. An error ends the process, so that it is seen.
export async function consume(backlog, store, close) {
  const connection = await amqp.connect(process.env.AMQP_URL);
  const channel = await connection.createChannel();
  await channel.prefetch(PREFETCH);
  const waiting = [];
  let wake = () => {};
  const { consumerTag } = await channel.consume(process.env.QUEUE, (delivery) => {
    waiting.push(delivery);
    wake();
  });
  const end = once(process, "SIGTERM").then(() => true);
  for (;;) {
    while (waiting.length === 0) {
      if (await Promise.race([end, new Promise((more) => (wake = () => more(false)))])) {
        await channel.cancel(consumerTag);
        await close();
        await connection.close();
        process.exit(0);
      }
    }
    await backlog.room();
    const taken = waiting.splice(0, BATCH);
    await store(distinct(taken.map(toPayment)));
    channel.ack(taken.at(-1), true);
  }
}
