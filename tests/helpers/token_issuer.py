"""An issuer of JWTs with keys that change."""

from __future__ import annotations

import datetime
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from jwt.algorithms import ECAlgorithm, RSAAlgorithm

ISSUER, AUDIENCE = "https://issuer.example", "barrage"


class Issuer:
    """Signs tokens, and tells its keys by HTTP on loopback."""

    def __init__(self) -> None:
        self.keys: dict[str, tuple[str, Any]] = {}
        self.asked = 0
        self.rotate("first")
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer.asked += 1
                body = issuer.key_set()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.uri = f"http://127.0.0.1:{self.server.server_port}/keys"
        self._thread = threading.Thread(target=self.server.serve_forever)
        self._thread.start()

    def rotate(self, number: str, algorithm: str = "ES256") -> None:
        made = (
            ec.generate_private_key(ec.SECP256R1())
            if algorithm == "ES256"
            else rsa.generate_private_key(public_exponent=65537, key_size=2048)
        )
        self.keys = {number: (algorithm, made)}

    def key_set(self) -> bytes:
        told = []
        for number, (algorithm, key) in self.keys.items():
            kind = ECAlgorithm if algorithm == "ES256" else RSAAlgorithm
            public = kind.to_jwk(key.public_key(), as_dict=True)
            told.append({**public, "kid": number, "alg": algorithm, "use": "sig"})
        return json.dumps({"keys": told}).encode()

    def token(self, *, lives_s: int = 600, **changed: Any) -> str:
        [(number, (algorithm, key))] = self.keys.items()
        now = datetime.datetime.now(datetime.UTC)
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": "dave",
            "roles": ["reader"],
            "exp": now + datetime.timedelta(seconds=lives_s),
        }
        claims = {name: value for name, value in {**claims, **changed}.items() if value is not None}
        return jwt.encode(claims, key, algorithm=algorithm, headers={"kid": number})

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()
