// Graphile Worker as its pages "Performance" (the configuration with batching), "Job key" and "addJobs()" say. A job key is known only
// while its job waits, and "each job will execute at least once": so the payments have a unique index.
import { Logger, makeWorkerUtils, run } from "graphile-worker";
import { Backlog, consume } from "./deliveries.mjs";

const INSERT = `
  insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
  values ($1, $2, $3, $4, $5, $6)
  on conflict do nothing`;

const backlog = new Backlog();

async function pay({ tenant, key, customer, amount, currency, sent_at }, { withPgClient }) {
  const values = [tenant, key, customer, amount, currency, sent_at];
  await withPgClient((client) => client.query({ name: "pay", text: INSERT, values }));
  backlog.remove(key);
}

const preset = {
  worker: {
    connectionString: process.env.DATABASE_URL,
    concurrentJobs: 24,
    maxPoolSize: 25,
    localQueue: { size: 500 },
    completeJobBatchDelay: 0,
    failJobBatchDelay: 0,
    // By default there are two lines on the console for each job.
    logger: new Logger(() => (level, message) => level === "error" && console.error(message)),
  },
};
const runner = await run({ preset, noHandleSignals: true, taskList: { pay } });
const utils = await makeWorkerUtils({ preset });

await consume(
  backlog,
  async (payments) => {
    for (const { key } of payments) backlog.add(key);
    await utils.addJobs(payments.map((payload) => ({ identifier: "pay", payload, jobKey: payload.key })));
  },
  async () => {
    await runner.stop();
    await utils.release();
  },
);
