"""A server tells an address when rows come to fulfil a condition, and when they cease to."""

import hmac
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import barrage
from barrage.server import Alert, ServerConfig

SECRET = "known to both of them"
seen: set[str] = set()
enough = threading.Event()


class Receiver(BaseHTTPRequestHandler):
    """What messages are sent to."""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        signed = self.headers["X-Barrage-Timestamp"].encode() + b"." + body
        right = "v1=" + hmac.new(SECRET.encode(), signed, "sha256").hexdigest()
        is_right = hmac.compare_digest(right, self.headers["X-Barrage-Signature"])
        self.send_response(204 if is_right else 401)
        self.end_headers()
        for event in json.loads(body)["events"] if is_right else []:
            if event["id"] not in seen:  # A message may come twice.
                seen.add(event["id"])
                print(event["status"], event["key"], event["row"])
        if len(seen) == 3:
            enough.set()

    def log_message(self, *_: object) -> None:
        """Nothing."""


with HTTPServer(("127.0.0.1", 0), Receiver) as http:
    threading.Thread(target=http.serve_forever, daemon=True).start()
    # An address of this machine, so it has to be named.
    with barrage.Server(config=ServerConfig(alert_hosts="127.0.0.1")) as server:
        quotes = server.create_table("quotes", {"sym": "string", "price": "float64"}, key="sym")
        server.add_alert(
            Alert(
                name="expensive",
                table="quotes",
                where="price > 100",
                url=f"http://127.0.0.1:{http.server_port}/hook",
                secret=SECRET,
                resolved=True,
                interval_ms=10,
            )
        )
        quotes.upsert({"sym": ["A", "B"], "price": [101.5, 99.0]})
        quotes.upsert({"sym": ["A"], "price": [102.5]})  # Goes on to be expensive: no news.
        quotes.upsert({"sym": ["A", "B"], "price": [98.0, 103.0]})
        enough.wait(60)
    http.shutdown()
