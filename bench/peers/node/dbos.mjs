// DBOS Transact as its pages "Workflows" (the workflow's id is the idempotency key), "Transactions & Datasources" (the payment commits with
// the checkpoint of its step) and "Configuration" say. Its receivers for Kafka start a workflow per message in the same way.
// Version 4 of the SDK: the datasource for Postgres.js that npm has is one of version 4, and version 5 does not run it.
import { DBOS } from "@dbos-inc/dbos-sdk";
import { PostgresDataSource } from "@dbos-inc/postgres-datasource";
import { Backlog, consume } from "./deliveries.mjs";

const POOL = 20;
const database = new URL(process.env.DATABASE_URL);
const source = new PostgresDataSource("payments", {
  host: database.hostname,
  port: Number(database.port),
  user: database.username,
  database: database.pathname.slice(1),
  max: POOL,
});

const insert = source.registerTransaction(
  async function insertPayment({ tenant, key, customer, amount, currency, sent_at }) {
    await source.client`
      insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
      values (${tenant}, ${key}, ${customer}, ${amount}, ${currency}, ${sent_at})`;
  },
  { isolationLevel: "READ COMMITTED" },
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
