"""An issuer of OpenID Connect on the loopback address, which can lie."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import time
from typing import Any
from urllib.parse import parse_qs, parse_qsl, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "console"
SECRET = "the secret of the console"
_TABLE = """
[console.oidc]
issuer = "{url}"
client_id = "{client}"
client_secret = "file:secret"
[console.oidc.people.1001]
name = "anna"
role = "approver"
agents = ["builder"]
"""


def oidc_table(url: str) -> str:
    """Return the configuration of a console whose people this issuer vouches for."""
    return _TABLE.format(url=url, client=CLIENT)


class Issuer(ThreadingHTTPServer):
    """Vouches for `subject`; `lies` are claims of its tokens that are wrong."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://localhost:{self.server_port}"
        self.key = self.signing = RSAKey.generate_key(2048, auto_kid=True)
        self.subject = "1001"
        self.lies: dict[str, Any] = {}
        self.codes: dict[str, dict[str, str]] = {}

    def token(self, nonce: str) -> str:
        now = int(time())
        times = {"iat": now, "exp": now + 60, "nonce": nonce}
        claims = {"iss": self.url, "aud": CLIENT, "sub": self.subject} | times
        header = {"alg": "RS256", "kid": self.signing.kid}
        return jwt.encode(header, claims | self.lies, self.signing)


class _Handler(BaseHTTPRequestHandler):
    server: Issuer

    def do_GET(self) -> None:
        parts, issuer = urlsplit(self.path), self.server
        if parts.path == "/.well-known/openid-configuration":
            names = ("authorization_endpoint", "token_endpoint", "jwks_uri")
            self._json({"issuer": issuer.url} | {n: f"{issuer.url}/{n}" for n in names})
        elif parts.path == "/jwks_uri":
            self._json({"keys": [issuer.key.as_dict(private=False)]})
        else:
            asked = dict(parse_qsl(parts.query))
            code = f"code{len(issuer.codes)}"
            issuer.codes[code] = asked
            back = urlencode({"code": code, "state": asked["state"]})
            self.send_response(302)
            self.send_header("Location", f"{asked['redirect_uri']}?{back}")
            self.end_headers()

    def do_POST(self) -> None:
        size = int(self.headers["Content-Length"])
        form = {k: v[0] for k, v in parse_qs(self.rfile.read(size).decode()).items()}
        asked = self.server.codes.pop(form["code"])
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        proof = base64.urlsafe_b64encode(digest).decode().rstrip("=")
        basic = base64.b64encode(f"{CLIENT}:{SECRET}".encode()).decode()
        known = self.headers["Authorization"] == f"Basic {basic}"
        same = form["redirect_uri"] == asked["redirect_uri"]
        if not (known and same and proof == asked["code_challenge"]):
            self.send_error(400)
            return
        self._json({"id_token": self.server.token(asked["nonce"])})

    def _json(self, value: dict[str, Any]) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())

    def log_message(self, *_: object) -> None:
        """Write no line for a request."""


@contextmanager
def served_issuer() -> Iterator[Issuer]:
    """Serve an issuer."""
    with Issuer() as issuer:
        thread = threading.Thread(target=issuer.serve_forever)
        thread.start()
        yield issuer
        issuer.shutdown()
        thread.join()
