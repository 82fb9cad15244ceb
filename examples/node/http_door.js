// Payments over HTTP, once for each Idempotency-Key: key, effect and answer are one transaction, and the answer leaves after its COMMIT.
// A client that hangs up, a server that is killed, a copy at the same time: the same request with the same key gets the same answer.
import { createHash, randomUUID } from "node:crypto";
import express from "express";
import pg from "pg";

const pool = new pg.Pool({ connectionString: process.env.DATABASE_URL, application_name: "http_door.js" });
pool.on("error", (error) => console.error(error.message));

// ANCHOR: middleware
const KEPT = ["content-type", "content-encoding", "location", "etag", "link", "cache-control"]; // Never set-cookie.
const MAY_CHANGE = new Set([401, 403, 407, 408, 409, 421, 423, 425, 429]);

// For POST and PATCH, behind express.raw(). `tenant` and `principal` say whose request it is, by what authentication has left in it: another
// principal with the same key is refused, and is told nothing of the first one's answer.
function idempotency({ consumer, tenant, principal }) {
  return async (request, response, next) => {
    if (request.method !== "POST" && request.method !== "PATCH") return next();
    const before = response.getHeaders();
    const problem = (status, detail, wait) => {
      // Nothing of an answer that was not committed.
      for (const name of response.getHeaderNames()) if (!(name in before)) response.removeHeader(name);
      if (wait) response.set("retry-after", String(wait));
      response.status(status).type("application/problem+json").send(JSON.stringify({ status, detail }));
    };
    const key = (request.headers["idempotency-key"] ?? "").replace(/^"(.*)"$/, "$1");
    if (!/^[\x21-\x7e]{1,255}$/.test(key)) return problem(400, "one Idempotency-Key of 1 to 255 visible characters is needed");
    const body = Buffer.isBuffer(request.body) ? request.body : Buffer.alloc(0);
    const print = createHash("sha256");
    // Each after its length: no two requests look the same.
    for (const part of [request.method, request.originalUrl, principal(request), body]) print.update(`${Buffer.byteLength(part)}:`).update(part);
    const identity = [tenant(request), consumer, key];
    let client;
    try {
      client = await pool.connect();
      await client.query("begin");
      // For the handler's own statements: oncely.claim waits for 100 ms, whatever is set.
      await client.query("set local lock_timeout = '2s'");
      const { rows } = await client.query(
        `select outcome, response, reason, extract(epoch from delay)::integer + 1 as wait from oncely.claim($1, $2, $3, $4)`,
        [...identity, print.digest()],
      );
      const claimed = rows[0];
      if (claimed.outcome !== "granted") {
        await client.query("commit");
        client.release();
        if (claimed.outcome === "retry") return problem(409, "it is at work: send the same request again, later", claimed.wait);
        if (claimed.outcome === "conflict") return problem(422, "this key came before with another request");
        if (claimed.outcome !== "duplicate") return problem(409, `it was given up: ${claimed.reason}`);
        const stored = claimed.response ?? {};
        response.set("idempotent-replayed", "true");
        if (!stored.http) return response.status(200).send(stored); // It came as a message.
        response.set(stored.headers);
        return response.status(stored.http).end(Buffer.from(stored.body, "base64"));
      }
      await client.query("savepoint writes");
      request.tx = client;
      const answer = await held(response, next);
      if (response.statusCode >= 400) await client.query("rollback to savepoint writes");
      if (response.statusCode >= 500 || MAY_CHANGE.has(response.statusCode)) {
        await client.query("rollback");
      } else {
        // Fails where the handler went on after an error.
        await client.query("release savepoint writes");
        const headers = Object.fromEntries(KEPT.filter((name) => response.hasHeader(name)).map((name) => [name, response.get(name)]));
        const stored = { http: response.statusCode, headers, body: answer.toString("base64") };
        await client.query("select oncely.complete($1, $2, $3, $4)", [...identity, stored]);
        await client.query("commit");
      }
      client.release();
      response.end(answer);
    } catch (error) {
      client?.release(true); // In whatever state it is: its transaction ends with it.
      console.error(error.message);
      if (error.code === "ONC15") return problem(500, "the answer is too large to be stored: nothing was done");
      if (error.code === "55P03") return problem(409, "it is at work: send the same request again", 1);
      // At COMMIT nobody knows whether it happened: the retry finds out.
      problem(503, "send the same request with the same key again", 1);
    }
  };
}

// Runs what comes behind, and returns its whole answer before it is sent.
function held(response, next) {
  return new Promise((resolve) => {
    const { write, end } = response;
    const chunks = [];
    const keep = (chunk, encoding) => chunk?.length && chunks.push(Buffer.from(chunk, typeof encoding === "string" ? encoding : "utf8"));
    response.flushHeaders = () => {};
    response.write = (chunk, encoding, done) => {
      keep(chunk, encoding);
      process.nextTick(typeof encoding === "function" ? encoding : (done ?? (() => {})));
      return true;
    };
    response.end = (chunk, encoding) => {
      Object.assign(response, { write, end });
      if (typeof chunk !== "function") keep(chunk, encoding);
      resolve(Buffer.concat(chunks));
      return response;
    };
    next();
  });
}
// ANCHOR_END: middleware

const app = express();
app.use(express.raw({ type: () => true }), idempotency({
  consumer: "payments.js",
  tenant: () => "acme",
  principal: (request) => request.headers.authorization ?? "",
}));

// The body, where it is a JSON object.
function parsed(request) {
  try {
    const value = JSON.parse(request.body);
    return typeof value === "object" ? value : null;
  } catch {
    return null;
  }
}

app.post("/payments", async (request, response) => {
  const order = parsed(request);
  if (order === null) return response.status(400).json({ error: "the body is no JSON object" });
  if (typeof order.order !== "string" || !Number.isInteger(order.cents)) {
    return response.status(422).json({ error: "order is no text, or cents no number" });
  }
  await request.tx.query("insert into shop.payments (tenant, order_id, charge) values ('acme', $1, $2)", [order.order, order]);
  response.status(201).location(`/payments/${order.order}`).json({ paid: order.order, receipt: randomUUID() });
});

// An answer in pieces is stored as a whole, and sent after COMMIT, like any other.
app.post("/payments/bulk", async (request, response) => {
  const orders = parsed(request)?.orders;
  if (!Array.isArray(orders)) return response.status(400).json({ error: "the body has no list of orders" });
  response.status(201).type("text/csv");
  for (const order of orders) {
    await request.tx.query("insert into shop.payments (tenant, order_id, charge) values ('acme', $1, $2)", [order, { order }]);
    response.write(`${order},${randomUUID()}\n`);
  }
  response.end();
});

app.listen(Number(process.env.PORT ?? 8090), "127.0.0.1", () => console.log("listening"));
