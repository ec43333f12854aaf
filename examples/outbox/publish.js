// An order and its event, in one transaction:  DATABASE_URL=… node publish.js
const { Client } = require("pg");

/** Commits the order and its event together, and returns the event's id. */
async function placeOrder(client, order, total) {
  await client.query("BEGIN");
  try {
    await client.query("INSERT INTO public.example_order VALUES ($1, $2) ON CONFLICT DO NOTHING", [order, total]);
    const { rows } = await client.query(
      "SELECT postrider.publish('shop.order.placed', $1::jsonb, aggregate_id => $2::text, group_id => 'acme') AS id",
      [JSON.stringify({ order, total }), order],
    );
    await client.query("COMMIT");
    return rows[0].id;
  } catch (error) {
    await client.query("ROLLBACK");
    throw error;
  }
}

async function main() {
  const client = new Client({ connectionString: process.env.DATABASE_URL });
  await client.connect();
  await client.query("CREATE TABLE IF NOT EXISTS public.example_order (id text PRIMARY KEY, total numeric NOT NULL)");
  console.log("committed", await placeOrder(client, "node-1", "12.50"));
  await client.end();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
