// DBOS Transact as its pages "Workflows" (the workflow's id is the idempotency key), "Transactions & Datasources" (the payment commits with
// the checkpoint of its step) and "Configuration" say. Its receivers for Kafka start a workflow per message in the same way.
// Version 4 of the SDK, since npm had no datasource for node-postgres of version 5. Not the datasource for Postgres.js: a few of
// thousands of workflows then end in the driver's error UNSAFE_TRANSACTION, and DBOS does not repeat a workflow that has failed.
import { DBOS } from "@dbos-inc/dbos-sdk";
import { DrizzleDataSource } from "@dbos-inc/drizzle-datasource";
import { sql } from "drizzle-orm";
import { Backlog, consume } from "./deliveries.mjs";

const POOL = 20;
const source = new DrizzleDataSource("payments", { connectionString: process.env.DATABASE_URL, max: POOL });

const insert = source.registerTransaction(
  async function insertPayment({ tenant, key, customer, amount, currency, sent_at }) {
    await source.client.execute(sql`
      insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
      values (${tenant}, ${key}, ${customer}, ${amount}, ${currency}, ${sent_at})`);
  },
  { isolationLevel: "read committed" },
);

// Of workflows that have begun: a message that comes again begins none.
const backlog = new Backlog(500);

const pay = DBOS.registerWorkflow(
  async function pay(payment) {
    backlog.add(payment.key);
    try {
      await insert(payment);
    } finally {
      backlog.remove(payment.key);
    }
  },
  { name: "pay" },
);

DBOS.setConfig({
  name: "payments",
  systemDatabaseUrl: process.env.DATABASE_URL,
  systemDatabasePoolSize: POOL,
  logLevel: "warn",
});
await DBOS.launch();

await consume(
  backlog,
  (payments) =>
    Promise.all(payments.map((payment) => DBOS.startWorkflow(pay, { workflowID: payment.key })(payment))),
  () => DBOS.shutdown(),
);
