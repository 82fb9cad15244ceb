// Writes one invoice for each order, however often its event comes: claim, work and complete are one transaction.
import { createHash } from "node:crypto";
import amqp from "amqplib";
import pg from "pg";

const CONSUMER = "invoices.js"; // Part of the identity: choose it once.
const QUEUE = "shop.invoices.js";
const DELAY = 5; // Seconds until a message that failed runs again.
// The client's names of AMQP's properties.
const PROPERTIES = {
  content_type: "contentType", content_encoding: "contentEncoding", delivery_mode: "deliveryMode", priority: "priority",
  correlation_id: "correlationId", reply_to: "replyTo", expiration: "expiration", message_id: "messageId", timestamp: "timestamp",
  type: "type", user_id: "userId", app_id: "appId",
};

// One client, not a pool: a pool's query() takes any connection, and claim and complete must be on the same one.
const sql = new pg.Client({ connectionString: process.env.DATABASE_URL, application_name: "consumer.js" });
await sql.connect();
await sql.query("set lock_timeout = '10s'"); // For the work's own statements: oncely.claim waits for 100 ms, whatever is set.
await sql.query("set idle_in_transaction_session_timeout = '60s'"); // A process that hangs must not hold its key.
// Nobody knows whether a COMMIT in flight happened: nothing is acknowledged. The process ends, the message comes again, and its
// claim tells.
sql.on("error", (error) => {
  console.error(error.message);
  process.exit(1);
});

async function transaction(work) {
  await sql.query("begin");
  try {
    const result = await work();
    await sql.query("commit");
    return result;
  } catch (error) {
    await sql.query("rollback");
    throw error;
  }
}

async function outcomeOf(message) {
  const tenant = message.properties.headers["x-tenant-id"];
  const key = message.properties.messageId;
  const identity = [tenant, CONSUMER, key, createHash("sha256").update(message.content).digest()];
  let attempt = 0;
  try {
    const outcome = await transaction(async () => {
      const { rows } = await sql.query("select outcome, attempt from oncely.claim($1, $2, $3, $4)", identity);
      attempt = rows[0].attempt;
      if (rows[0].outcome === "granted") {
        await sql.query(
          `insert into shop.invoices (tenant, order_id, cents)
           select $1, event ->> 'order', (event ->> 'cents')::bigint
           from (select convert_from($2, 'UTF8')::jsonb as event) as e`,
          [tenant, message.content],
        );
        await sql.query("select oncely.complete($1, $2, $3, queue => $4)", [tenant, CONSUMER, key, QUEUE]);
      }
      return rows[0].outcome;
    });
    return ["given_up", "conflict"].includes(outcome) ? await fail(identity, attempt, null, message) : outcome;
  } catch (error) {
    if (error.code === "ONC11") return "invalid"; // No tenant or no key: it will never have one.
    // Somebody holds the key, or a deadlock: nobody's failure. Or another cell's tenant, once there are cells.
    if (["55P03", "40P01", "ONC17"].includes(error.code)) return "retry";
    return await fail(identity, attempt, error.code ?? null, message);
  }
}

// Counts the failure of a message whose work was rolled back. One that is given up becomes a dead letter in the same transaction, and
// this row is the message from then on: `oncely failed requeue` publishes it to the queue again.
async function fail(identity, attempt, code, message) {
  const { fields, properties, content } = message;
  // The kind of the error alone: PostgreSQL's text may hold what the message held, and the trail keeps what it is told.
  const said = code && `SQLSTATE ${code}`;
  const named = Object.fromEntries(Object.entries(PROPERTIES).map(([name, own]) => [name, properties[own]]));
  const { rows } = await sql.query(
    `select outcome, stored from oncely.fail($1, $2, $3, $4, $5, $6, error_code => $7, delay => make_interval(secs => $8), queue => $9,
       body => $10, properties => $11, headers => $12, exchange => $13, routing_key => $14)`,
    [...identity, attempt, said, code, DELAY, QUEUE, content, JSON.stringify(named), JSON.stringify(properties.headers), fields.exchange,
      fields.routingKey],
  );
  return rows[0].stored ? "stored" : rows[0].outcome;
}

const broker = await amqp.connect(process.env.AMQP_URL);
broker.on("close", () => process.exit(1));
broker.on("error", (error) => console.error(error.message));
const channel = await broker.createChannel();
const delayed = await broker.createConfirmChannel();
await channel.assertExchange("shop", "topic", { durable: true });
const quorum = { "x-queue-type": "quorum" };
await channel.assertQueue(`${QUEUE}.dead`, { arguments: quorum });
await channel.assertQueue(`${QUEUE}.wait`, {
  arguments: { ...quorum, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": QUEUE, "x-message-ttl": DELAY * 1000 },
});
await channel.assertQueue(QUEUE, {
  arguments: { ...quorum, "x-dead-letter-exchange": "", "x-dead-letter-routing-key": `${QUEUE}.dead` },
});
await channel.bindQueue(QUEUE, "shop", "order.placed");
await channel.prefetch(20);

// One message after the other: there is one connection, and it has one transaction at a time.
let turn = Promise.resolve();
await channel.consume(QUEUE, (message) => {
  if (message === null) process.exit(1); // The queue is gone.
  turn = turn.then(async () => {
    const outcome = await outcomeOf(message);
    // Only now: what was granted is known to be committed.
    if (["granted", "duplicate", "stored"].includes(outcome)) {
      channel.ack(message);
    } else if (outcome === "retry") {
      // Into the delay queue, from where it comes back; the others go on meanwhile. A crash before the acknowledgement leaves a copy too
      // many, which is a duplicate. The broker takes a user's own name only.
      const { userId, expiration, ...properties } = message.properties;
      delayed.sendToQueue(`${QUEUE}.wait`, message.content, properties);
      await delayed.waitForConfirms();
      channel.ack(message);
    } else {
      channel.nack(message, false, false); // To the dead-letter queue.
    }
  }).catch((error) => {
    console.error(error);
    process.exit(1);
  });
});
console.log("consuming");
