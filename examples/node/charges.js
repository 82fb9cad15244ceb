// A payment service, in front of a stock worker: each message comes as a POST, with a key by which it is known again.
// Whoever is killed in between, worker or service, there is one charge an order.
import { createServer } from "node:http";
import { setTimeout as sleep } from "node:timers/promises";
import pg from "pg";

const books = new pg.Pool({ connectionString: process.env.DATABASE_URL });

// ANCHOR: serve
async function charge(request) {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const order = JSON.parse(Buffer.concat(chunks).toString());
  if (!Number.isInteger(order.cents)) return [422, { error: "cents is no number" }];
  const { rows } = await books.query(
    `insert into shop.provider_books (idempotency_key, order_id) values ($1, $2)
     on conflict (idempotency_key) do update set calls = shop.provider_books.calls + 1 returning id, calls`,
    [request.headers["idempotency-key"], request.headers["oncely-key"]],
  );
  // The answer to a first call takes a while: a good moment to be killed in.
  if (rows[0].calls === 1) await sleep(Number(process.env.PROVIDER_DELAY ?? 0));
  return [201, { charge: rows[0].id }];
}
// ANCHOR_END: serve

createServer(async (request, response) => {
  let [status, answer] = [500, {}];
  try {
    [status, answer] = await charge(request);
  } catch (error) {
    console.error(error.message);
  }
  response.writeHead(status, { "content-type": "application/json" }).end(JSON.stringify(answer));
}).listen(Number(process.env.PORT ?? 8090), "127.0.0.1", () => console.log("listening"));
