// pg-boss as its pages "Jobs", "Queues" and "Workers" say: a job whose id is the message's key is inserted once, as long as
// its row is kept (deleteAfterSeconds, seven days); a transactional worker commits the handler's writes with the jobs'
// completion. The settings for throughput are those of "Workers": batches, burstWhenBatchFull, LISTEN/NOTIFY.
import { PgBoss } from "pg-boss";
import { Backlog, consume } from "./deliveries.mjs";

const QUEUE = "payments";
const INSERT = `
  insert into bench.payments (tenant, key, customer, amount, currency, sent_at)
  select * from unnest($1::text[], $2::text[], $3::integer[], $4::bigint[], $5::text[], $6::bigint[])`;
const COLUMNS = ["tenant", "key", "customer", "amount", "currency", "sent_at"];

const boss = new PgBoss({ connectionString: process.env.DATABASE_URL, useListenNotify: true });
boss.on("error", (error) => {
  throw error;
});
await boss.start();
await boss.createQueue(QUEUE, { partition: true, notify: true });

const backlog = new Backlog();
const options = { batchSize: 500, localConcurrency: 2, burstWhenBatchFull: true, transactional: true };
await boss.work(QUEUE, options, async (jobs, transaction) => {
  const columns = COLUMNS.map((column) => jobs.map(({ data }) => data[column]));
  await transaction.executeSql(INSERT, columns);
  for (const { id } of jobs) backlog.remove(id);
});

await consume(
  backlog,
  async (payments) => {
    for (const { key } of payments) backlog.add(key);
    const jobs = payments.map((payment) => ({ id: payment.key, data: payment }));
    const stored = new Set(await boss.insert(QUEUE, jobs, { returnId: true }));
    for (const { key } of payments) if (!stored.has(key)) backlog.remove(key);
  },
  () => boss.stop(),
);
