// Restate as its pages "TypeScript SDK Clients" (one-way invocation with an idempotency key, kept for a day), "Serving" and "Databases and
// Restate" say: a single insert needs no durable step, and "uses the database's primary key uniqueness to avoid duplicate
// entries", here a unique index. The server is a process of its own with its own log, which it syncs to disk by default.
import { setTimeout } from "node:timers/promises";
import * as restate from "@restatedev/restate-sdk";
import * as clients from "@restatedev/restate-sdk-clients";
import pg from "pg";
import { Backlog, consume } from "./deliveries.mjs";

const INSERT = `
  insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
  values ($1, $2, $3, $4, $5, $6)
  on conflict do nothing`;

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, max: 20 });
const backlog = new Backlog();

const payments = restate.service({
  name: "payments",
  handlers: {
    async pay(_context, { tenant, key, customer, amount, currency, sent_at }) {
      const values = [tenant, key, customer, amount, currency, sent_at];
      await pool.query({ name: "pay", text: INSERT, values });
      backlog.remove(key);
    },
  },
});

// The server starts at the same time.
async function ready(url) {
  const deadline = Date.now() + 60_000;
  for (;;) {
    const answer = await fetch(url).catch((error) => error);
    if (answer.ok) return;
    if (Date.now() > deadline) throw new Error(`${url} is not ready: ${answer.status ?? answer}`);
    await setTimeout(50);
  }
}

const port = Number(process.env.RESTATE_SERVICE_PORT);
await restate.serve({ services: [payments], port });
await ready(`${process.env.RESTATE_ADMIN_URL}/health`);
await ready(`${process.env.RESTATE_INGRESS_URL}/restate/health`);
const deployment = { method: "POST", headers: { "content-type": "application/json" } };
const body = JSON.stringify({ uri: `http://127.0.0.1:${port}` });
const registered = await fetch(`${process.env.RESTATE_ADMIN_URL}/deployments`, { ...deployment, body });
if (!registered.ok) throw new Error(`the service can't be registered: ${await registered.text()}`);

const client = clients.connect({ url: process.env.RESTATE_INGRESS_URL }).serviceSendClient(payments);

async function send(payment) {
  backlog.add(payment.key);
  const sent = await client.pay(payment, clients.rpc.sendOpts({ idempotencyKey: payment.key }));
  if (sent.status === "PreviouslyAccepted") backlog.remove(payment.key);
}

await consume(
  backlog,
  (batch) => Promise.all(batch.map(send)),
  () => pool.end(),
);
