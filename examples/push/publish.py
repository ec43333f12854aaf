"""Publishes two events over HTTP, one alone and one as a CloudEvent in a batch:  python3 publish.py http://127.0.0.1:7070"""

import json
import os
import sys
import urllib.request


def post(path: str, content_type: str, body: object) -> dict:
    request = urllib.request.Request(sys.argv[1] + path, json.dumps(body).encode(), {"content-type": content_type})
    if token := os.environ.get("POSTRIDER_TOKEN"):
        request.add_header("authorization", f"Bearer {token}")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


if __name__ == "__main__":
    print(post("/v1/events", "application/json", {"type": "shop.order.placed", "aggregate_id": "1", "data": {"total": "12.50"}}))
    event = {"specversion": "1.0", "id": "evt_py_2", "source": "/shop", "type": "shop.order.paid", "subject": "1", "data": {"by": "card"}}
    print(post("/v1/events:batch", "application/cloudevents-batch+json", [event]))
