"""CloudEvents by their own SDK, both ways:  python3 cloud_events.py receive [PORT]  and  python3 cloud_events.py publish URL

Needs `pip install cloudevents` (2.x). The subscription has `form = "cloudevents"`. What comes out is what went in: id, source, type,
subject, an extension of one's own, and the payload. Ends after EXPECT events, if that is set.
"""

import json
import os
import sys
import threading
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from cloudevents.core.bindings import http
from cloudevents.core.v1.event import CloudEvent

TRIPS = [
    (http.to_binary_event, {"id": "evt_ce_1", "type": "shop.order.placed"}, {"total": "12.50"}),
    (http.to_structured_event, {"id": "evt_ce_2", "type": "shop.order.paid"}, {"by": "card"}),
]
COMMON = {"source": "/shop/zürich", "subject": "order 1", "comefrom": "a test of 100 % \"foreign\" text"}


def publish(url: str) -> None:
    for write, attributes, data in TRIPS:
        message = write(CloudEvent({**COMMON, **attributes, "datacontenttype": "application/json"}, data))
        request = urllib.request.Request(url + "/v1/events", message.body, dict(message.headers), method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            print(answer.status, json.load(answer))


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: set[str] = set()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event = http.from_http_event(http.HTTPMessage(headers=dict(self.headers.items()), body=body))
        sent = {attributes["id"]: (attributes, data) for _, attributes, data in TRIPS}
        attributes, data = sent[event.get_id()]
        wanted = {**COMMON, **attributes}
        got = {name: event.get_attributes().get(name) for name in wanted}
        if got != wanted or event.get_data() != data or event.get_time() is None:
            print("differs:", got, event.get_data(), flush=True)
            os._exit(1)
        print("received", attributes["type"].rsplit(".")[-1], event.get_data(), flush=True)
        self.seen.add(event.get_id())
        self.send_response(204)
        self.end_headers()
        if len(self.seen) >= int(os.environ.get("EXPECT", "1000000000")):
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    if sys.argv[1] == "publish":
        publish(sys.argv[2])
    else:
        server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2]) if len(sys.argv) > 2 else 0), Endpoint)
        print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()
