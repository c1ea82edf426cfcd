"""An agent clones, pushes and may not delete, with a token that it never has.

The server is one of this machine, with git's own program behind it. With GitHub the
configuration is that of docs/howto/use_a_token.md.
"""

from __future__ import annotations

import base64
import os
import secrets
import ssl
import subprocess
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import anyio

from toolcell.guard import ActionGuard, AgentPolicy
from toolcell.sandbox import SandboxConfig, SandboxManager
from toolcell.tools import ConcurrentExecutor, ToolRegistry

NAME = "git.example.test"
TOKEN = f"ghp_{secrets.token_hex(18)}"
POLICY = {
    "agent_id": "builder",
    "allow": [
        {
            "tools": ["http.request"],
            "when": {
                "method": {"one_of": ["GET", "POST"]},
                "path": {"under": "/site.git"},
            },
        }
    ],
}
PROGRAM = """
set -e
exec 2>&1
git clone -q "https://builder:$GIT_TOKEN@$server/site.git"
cd site
echo hello > page
git add page
git -c user.name=builder -c user.email=builder@example.test commit -q -m "Say hello"
git push -q
python3 - <<'END'
import os, urllib.error, urllib.request
request = urllib.request.Request(f"https://{os.environ['server']}/site.git")
request.add_header("Authorization", "Bearer " + os.environ["GIT_TOKEN"])
request.method = "DELETE"
try:
    urllib.request.urlopen(request)
except urllib.error.HTTPError as error:
    print("DELETE:", error.code, error.headers["X-Toolcell-Refusal"])
END
echo "$GIT_TOKEN"
"""


class GitServer(BaseHTTPRequestHandler):
    """Serves the repositories of a folder to those who have the token."""

    root: Path

    def do_GET(self) -> None:
        """Answer with what git's own program says."""
        login = base64.b64encode(f"builder:{TOKEN}".encode()).decode()
        if self.headers["Authorization"] != f"Basic {login}":
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        url = urlsplit(self.path)
        size = int(self.headers["Content-Length"] or 0)
        variables = {
            "GIT_PROJECT_ROOT": str(self.root),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROTOCOL": self.headers["Git-Protocol"] or "",
            "REMOTE_USER": "builder",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": url.path,
            "QUERY_STRING": url.query,
            "CONTENT_TYPE": self.headers["Content-Type"] or "",
            "CONTENT_LENGTH": str(size),
            "HTTP_CONTENT_ENCODING": self.headers["Content-Encoding"] or "",
        }
        done = subprocess.run(
            ["git", "http-backend"],
            input=self.rfile.read(size),
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            check=True,
        )
        head, _, body = done.stdout.partition(b"\r\n\r\n")
        length = b"\r\nContent-Length: %d\r\n\r\n" % len(body)
        self.wfile.write(b"HTTP/1.0 200 OK\r\n" + head + length + body)

    do_POST = do_GET

    def log_message(self, *_: object) -> None:
        """Be quiet."""


def serve(folder: Path) -> ThreadingHTTPServer:
    """Serve an empty repository over TLS."""
    site = ["git", "-C", str(folder / "site.git")]
    subprocess.run(["git", "init", "-q", "--bare", f"{folder}/site.git"], check=True)
    subprocess.run([*site, "config", "http.receivepack", "true"], check=True)
    files = ["-keyout", f"{folder}/key.pem", "-out", f"{folder}/certificate.pem"]
    names = ["-subj", f"/CN={NAME}", "-addext", f"subjectAltName=DNS:{NAME}"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made = ["openssl", "req", "-x509", *key, *files, *names]
    subprocess.run(made, check=True, capture_output=True)
    handler = type("Handler", (GitServer,), {"root": folder})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{folder}/certificate.pem", f"{folder}/key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever).start()
    return server


async def work(folder: Path, port: int) -> str:
    """Run the agent's program; return what it printed."""
    server = f"{NAME}:{port}"
    config = SandboxConfig.model_validate(
        {
            "backend": "subprocess",
            "network": {
                "mode": "guarded",
                "hosts": [server, f"127.0.0.1:{port}"],
                "inspect": [server],
                "server_ca": f"{folder}/certificate.pem",
            },
            "credentials": [
                {
                    "name": "git",
                    "value": "env:GIT_TOKEN",
                    "hosts": [server],
                    "agents": ["builder"],
                    "variable": "GIT_TOKEN",
                    "prefix": "ghp_",
                }
            ],
        }
    )
    guard = ActionGuard([AgentPolicy.model_validate(POLICY)])
    gate = ConcurrentExecutor(ToolRegistry([]), guard=guard).request_gate(
        agent_id="builder"
    )

    async def resolver(host: str, port: int) -> list[str]:
        return ["127.0.0.1"]

    async with SandboxManager(config, resolver=resolver) as sandbox:
        result = await sandbox.run(
            PROGRAM,
            language="bash",
            inputs={"server": server},
            agent_id="builder",
            gate=gate,
        )
    if not result.ok:
        raise SystemExit(f"{result.status}: {result.stdout}")
    return result.stdout


def main() -> None:
    """Print what came of it."""
    os.environ["GIT_TOKEN"] = TOKEN
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = serve(folder)
        try:
            *said, token = anyio.run(work, folder, server.server_port).splitlines()
        finally:
            server.shutdown()
            server.server_close()
        log = ["git", "-C", f"{folder}/site.git", "log", "--format=pushed: %s"]
        pushed = subprocess.run([*log, "--all"], check=True, capture_output=True)
    print("\n".join([*said, pushed.stdout.decode().strip()]))
    print("the program's token is", "the token" if token == TOKEN else "a placeholder")


if __name__ == "__main__":
    main()
