"""An endpoint that verifies and deduplicates:  WEBHOOK_SECRET=whsec_… python3 receive.py [PORT]

Needs `pip install standardwebhooks`. Ends after EXPECT events, if that is set.
"""

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from standardwebhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["WEBHOOK_SECRET"])
seen: set[str] = set()  # in a real service: a table, written in the transaction that does the work


class Endpoint(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            webhook.verify(body, dict(self.headers.items()))
        except WebhookVerificationError as error:
            return self.answer(401, str(error))  # a 4xx is not tried again
        event = self.headers["webhook-id"]  # the same on every attempt
        if event not in seen:
            seen.add(event)
            print("received", self.headers["x-event-type"], json.loads(body)["payload"], flush=True)
        self.answer(200, "")  # 5xx, 429 or {"status": "RETRY"} would have it sent again

    def answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())
        if len(seen) >= int(os.environ.get("EXPECT", "1000000000")):
            threading.Thread(target=self.server.shutdown).start()

    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0), Endpoint)
    print(f"listening on http://127.0.0.1:{server.server_port}/", flush=True)
    server.serve_forever()
