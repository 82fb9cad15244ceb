// Writes one invoice for each order, however often its event comes: claim, work and complete are one transaction.
import { createHash } from "node:crypto";
import { setTimeout as pause } from "node:timers/promises";
import amqp from "amqplib";
import pg from "pg";

const CONSUMER = "invoices.js"; // Part of the identity: choose it once.
const QUEUE = "shop.invoices.js";

// One client, not a pool: a pool's query() takes any connection, and claim and complete must be on the same one.
const sql = new pg.Client({ connectionString: process.env.DATABASE_URL, application_name: "consumer.js" });
await sql.connect();
await sql.query("set lock_timeout = '10s'"); // For a claim that waits for another process's.
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
  const fingerprint = createHash("sha256").update(message.content).digest();
  let attempt = 0;
  try {
    return await transaction(async () => {
      const { rows } = await sql.query("select outcome, attempt from oncely.claim($1, $2, $3, $4)", [
        tenant, CONSUMER, key, fingerprint,
      ]);
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
  } catch (error) {
    if (error.code === "ONC11") return "invalid"; // No tenant or no key: it will never have one.
    if (error.code === "ONC17") return "elsewhere";
    // Somebody holds the key, or a deadlock: nobody's failure.
    if (error.code === "55P03" || error.code === "40P01") return "retry";
    // The work was rolled back; that it failed is counted.
    const { rows } = await sql.query(
      "select outcome from oncely.fail($1, $2, $3, $4, $5, $6, error_code => $7, queue => $8)",
      [tenant, CONSUMER, key, fingerprint, attempt, error.message, error.code, QUEUE],
    );
    return rows[0].outcome;
  }
}

const broker = await amqp.connect(process.env.AMQP_URL);
broker.on("close", () => process.exit(1));
broker.on("error", (error) => console.error(error.message));
const channel = await broker.createChannel();
await channel.assertExchange("shop", "topic", { durable: true });
const quorum = { "x-queue-type": "quorum" };
await channel.assertQueue(`${QUEUE}.dead`, { arguments: quorum });
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
    if (outcome === "granted" || outcome === "duplicate") {
      channel.ack(message);
    } else if (outcome === "retry" || outcome === "elsewhere") {
      // Too early; or another cell's tenant, once there are cells.
      await pause(1000);
      channel.nack(message, false, true);
    } else {
      channel.nack(message, false, false); // To the dead-letter queue.
    }
  }).catch((error) => {
    console.error(error);
    process.exit(1);
  });
});
console.log("consuming");
