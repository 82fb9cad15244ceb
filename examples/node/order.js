// Places orders. Each one, and the event that tells the world of it, is one transaction: both are there, or neither.
import pg from "pg";

const count = Number(process.argv[2] ?? 10);
const sql = new pg.Client({ connectionString: process.env.DATABASE_URL, application_name: "order.js" });
await sql.connect();

async function place(tenant, order, cents) {
  await sql.query("begin");
  const placed = await sql.query(
    "insert into shop.orders (tenant, id, cents) values ($1, $2, $3) on conflict do nothing",
    [tenant, order, cents],
  );
  // None: placed before this program was killed, with its event.
  if (placed.rowCount === 1) {
    await sql.query(
      `select oncely.emit(
         'shop', 'order.placed', $1::jsonb, headers => $2, ordering_key => $3, tenant => $4
       )`,
      [{ order, cents }, { "x-tenant-id": tenant }, order, tenant],
    );
  }
  await sql.query("commit");
}

// What fails ends the program, and with it the transaction.
for (let number = 1; number <= count; number += 1) {
  await place("acme", `order-${number}`, number * 100);
}
await sql.end();
console.log(`${count} orders are placed`);
