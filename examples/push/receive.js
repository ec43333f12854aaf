// An endpoint that verifies and deduplicates:  WEBHOOK_SECRET=whsec_… node receive.js [PORT]
//
// Needs `npm install standardwebhooks`. Ends after EXPECT events, if that is set.
const http = require("node:http");
const { Webhook } = require("standardwebhooks");

const webhook = new Webhook(process.env.WEBHOOK_SECRET);
const seen = new Set(); // in a real service: a table, written in the transaction that does the work

const server = http.createServer(async (request, response) => {
  const chunks = [];
  for await (const chunk of request) chunks.push(chunk);
  const body = Buffer.concat(chunks).toString();
  let event;
  try {
    event = webhook.verify(body, request.headers);
  } catch (error) {
    return response.writeHead(401).end(error.message); // a 4xx is not tried again
  }
  const id = request.headers["webhook-id"]; // the same on every attempt
  if (!seen.has(id)) {
    seen.add(id);
    console.log("received", request.headers["x-event-type"], JSON.stringify(event.payload));
  }
  response.writeHead(200).end(); // 5xx, 429 or {"status": "RETRY"} would have it sent again
  if (seen.size >= Number(process.env.EXPECT ?? Infinity)) server.close(() => process.exit(0)), server.closeIdleConnections();
});

server.listen(Number(process.argv[2] ?? 0), "127.0.0.1", () => {
  console.log(`listening on http://127.0.0.1:${server.address().port}/`);
});
