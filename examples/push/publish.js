// Publishes two events over HTTP, one alone and one as a CloudEvent in a batch:  node publish.js http://127.0.0.1:7070
async function post(path, contentType, body) {
  const headers = { "content-type": contentType };
  if (process.env.POSTRIDER_TOKEN) headers.authorization = `Bearer ${process.env.POSTRIDER_TOKEN}`;
  const answer = await fetch(process.argv[2] + path, { method: "POST", headers, body: JSON.stringify(body) });
  if (!answer.ok) throw new Error(`${answer.status}: ${await answer.text()}`);
  return answer.json();
}

(async () => {
  console.log(await post("/v1/events", "application/json", { type: "shop.order.placed", aggregate_id: "1", data: { total: "12.50" } }));
  const event = { specversion: "1.0", id: "evt_js_2", source: "/shop", type: "shop.order.paid", subject: "1", data: { by: "card" } };
  console.log(await post("/v1/events:batch", "application/cloudevents-batch+json", [event]));
})();
