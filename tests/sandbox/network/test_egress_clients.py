"""Programs that people use find the way out by themselves."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import ssl
import subprocess
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import (
    ExecutionResult,
    Limits,
    Mount,
    Network,
    PackageRules,
    SandboxManager,
)

from ...conftest import SUBPROCESS, BackendRow, missing
from ...support.cells.client_programs import SHOWN, collect, install
from ...support.cells.node_cells import options
from ...support.cells.web_server import (
    NAME,
    Server,
    Site,
    resolve_here,
    running,
    secure,
    self_signed,
    serving,
)
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

PACKAGES = ("httpx", "pip", "requests")
"""Programs that have to find the way out, installed as programs get them."""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves the files of a folder."""

    protocol_version = "HTTP/1.1"

    def handle(self) -> None:
        try:
            super().handle()
        except (ConnectionError, ssl.SSLError):
            return

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


@dataclass
class Shop:
    """Files behind TLS."""

    port: int
    certificate: str

    @property
    def url(self) -> str:
        return f"https://{NAME}:{self.port}"


def stock(folder: Path) -> None:
    """Put a page, a Git repository and a package into a folder."""
    (folder / "page").write_text("hello")
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.test", "-C"]
    work = folder / "work"
    work.mkdir()
    (work / "file").write_text("from git")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, str(work), *command], check=True)
    bare = str(folder / "repository.git")
    subprocess.run(["git", "clone", "-q", "--bare", str(work), bare], check=True)
    subprocess.run([*git, bare, "update-server-info"], check=True)
    index = folder / "simple" / "parcel"
    index.mkdir(parents=True)
    name = "parcel-1.0-py3-none-any.whl"
    (index / "index.html").write_text(f'<a href="{name}">{name}</a>')
    info = "parcel-1.0.dist-info"
    files = {
        "parcel.py": "WORD = 'from pip'\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nTag: py3-none-any\n",
    }
    record = ""
    with zipfile.ZipFile(index / name, "w") as wheel:
        for path, text in files.items():
            digest = hashlib.sha256(text.encode()).digest()
            code = base64.urlsafe_b64encode(digest).decode().rstrip("=")
            record += f"{path},sha256={code},{len(text)}\n"
            wheel.writestr(path, text)
        wheel.writestr(f"{info}/RECORD", f"{record}{info}/RECORD,,\n")


@pytest.fixture(scope="module")
def shop() -> Iterator[Shop]:
    with tempfile.TemporaryDirectory() as folder:
        certificate = self_signed(Path(folder))
        root = Path(folder, "root")
        root.mkdir()
        stock(root)
        server = Server(("127.0.0.1", 0), partial(Quiet, directory=str(root)))
        trusted = secure(server, certificate)
        with running(server):
            yield Shop(server.server_port, trusted)


@pytest.fixture(scope="module")
def plain() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def clients() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        collect(Path(folder))
        yield Path(folder)


@pytest.fixture(scope="module")
async def sandbox(
    backend: BackendRow, shop: Shop, plain: Site, clients: Path
) -> AsyncIterator[SandboxManager]:
    # What these programs look for certificates with, each by its own name.
    trust = (
        *("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GIT_SSL_CAINFO"),
        *("PIP_CERT", "NODE_EXTRA_CA_CERTS"),
    )
    config = backend.config(
        limits=Limits(wall_seconds=60, memory_mib=1024),
        network=Network.allow(
            [f"{NAME}:{shop.port}", f"127.0.0.1:{shop.port}", *plain.rules]
        ),
        mounts=(Mount(source=str(clients), target=SHOWN),),
        env={
            **dict.fromkeys(trust, "/work/ca.pem"),
            "GIT_EXEC_PATH": f"{SHOWN}/bin",
            "CLIENTS": f"{SHOWN}/bin",
        },
        package_rules=PackageRules(allow=PACKAGES),
        **options(backend),
    )
    async with SandboxManager(config, resolver=resolve_here) as manager:
        await install(manager, PACKAGES)
        yield manager


async def bash(
    sandbox: SandboxManager, shop: Shop, code: str, **more: Any
) -> ExecutionResult:
    result = await sandbox.run(
        code,
        language="bash",
        inputs={"url": shop.url},
        files={"ca.pem": shop.certificate},
        **more,
    )
    assert result.status == "ok", result.stderr
    assert {
        (connection.host, connection.verdict) for connection in result.connections
    } == {(NAME, "allowed")}
    return result


@pytest.mark.promise("QN12")
async def test_curl(sandbox: SandboxManager, shop: Shop) -> None:
    curl = '"$CLIENTS/curl" -sS'
    socks = '--proxy "socks5h://${http_proxy#http://}"'
    code = f'{curl} "$url/page"; {curl} {socks} "$url/page"'

    assert (await bash(sandbox, shop, code)).stdout == "hellohello"


@pytest.mark.promise("QP17")
async def test_git_over_https(sandbox: SandboxManager, shop: Shop) -> None:
    clone = '"$CLIENTS/git" clone -q "$url/repository.git" copy 2>&1'
    said = await bash(sandbox, shop, f"{clone} && cat copy/file")

    assert said.stdout.endswith("from git")


@pytest.mark.promise("QP17", "QN12")
async def test_pip(sandbox: SandboxManager, shop: Shop) -> None:
    code = (
        "python3 -m pip install -q --disable-pip-version-check --target here "
        '--index-url "$url/simple" parcel && PYTHONPATH=here python3 -c '
        '"import parcel; print(parcel.WORD)"'
    )
    said = await bash(sandbox, shop, code, packages=PACKAGES)

    assert said.stdout == "from pip\n"


@pytest.mark.promise("QN4", "QN8")
@pytest.mark.parametrize("library", ["requests", "httpx", "urllib.request"])
async def test_python_libraries(
    sandbox: SandboxManager, shop: Shop, library: str
) -> None:
    fetch = "urlopen(url).read()" if "urllib" in library else "get(url).content"
    code = f"import {library} as client\nclient.{fetch}.decode()"
    result = await sandbox.run(
        code,
        inputs={"url": f"{shop.url}/page"},
        files={"ca.pem": shop.certificate},
        packages=PACKAGES,
    )

    assert result.value == "hello", result.stderr
    assert [connection.verdict for connection in result.connections] == ["allowed"]


POOLED = {
    "requests": "import requests\nclient = requests.Session()",
    "httpx": "import httpx\nclient = httpx.Client()",
    "urllib3": """
import os, urllib3
class client:
    pool = urllib3.ProxyManager(os.environ["http_proxy"])
    get = staticmethod(lambda url: client.pool.request("GET", url))
    post = staticmethod(lambda url, data: client.pool.request("POST", url, fields=data))
""",
}
REQUESTS = """
def status(answer):
    return getattr(answer, "status_code", None) or answer.status
found = [status(client.get(f"{url}/{n}")) for n in range(30)]
found += [status(client.post(url, data={"a": "1"})) for n in range(30)]
found.count(200)
"""
NODE_AGENT = """
const http = await import("node:http")
const agent = new http.Agent({ keepAlive: true, proxyEnv: process.env })
const get = (path) => new Promise((resolve, reject) => {
  const asked = http.get(url + path, { agent }, (answer) => {
    answer.resume()
    answer.on("end", () => resolve(answer.statusCode))
  })
  asked.on("error", reject)
})
let found = 0
for (let n = 0; n < 30; n++) {
  found += (await get(`/${n}`)) === 200
  found += (await (await fetch(`${url}/${n}`)).text()) === `hello /${n}`
}
console.log(found)
"""


@pytest.mark.promise("QN1")
@pytest.mark.parametrize("library", POOLED)
async def test_pooled_clients_lose_no_request(
    sandbox: SandboxManager, shop: Shop, plain: Site, library: str
) -> None:
    """The server does not say that it closes; the proxy does."""
    result = await sandbox.run(
        POOLED[library] + REQUESTS,
        inputs={"url": plain.url},
        files={"ca.pem": shop.certificate},
        packages=PACKAGES,
    )

    assert (result.status, result.value) == ("ok", 60), result.stderr


@pytest.mark.promise("QN1")
async def test_an_agent_of_node_loses_no_request(
    sandbox: SandboxManager, plain: Site
) -> None:
    result = await sandbox.run(NODE_AGENT, language="node", inputs={"url": plain.url})

    assert (result.status, result.stdout) == ("ok", "60\n"), result.stderr


async def test_the_systems_certificates_are_at_hand() -> None:
    if not Path("/etc/ssl/certs/ca-certificates.crt").exists():
        missing("this system keeps its certificates elsewhere")
    code = """
import os, ssl
trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
trust.load_verify_locations("/etc/ssl/certs/ca-certificates.crt")
[len(trust.get_ca_certs()) > 50, os.path.exists("/etc/ssl/private")]
"""
    async with SandboxManager(SUBPROCESS.config()) as sandbox:
        assert (await sandbox.run(code)).value == [True, False]


async def test_node_fetches(sandbox: SandboxManager, shop: Shop) -> None:
    result = await sandbox.run(
        "const answer = await fetch(url + '/page')\nconsole.log(await answer.text())",
        language="node",
        inputs={"url": shop.url},
        files={"ca.pem": shop.certificate},
    )

    assert (result.status, result.stdout) == ("ok", "hello\n"), result.stderr
    assert [
        (connection.host, connection.verdict) for connection in result.connections
    ] == [(NAME, "allowed")]


def test_the_command_line_names_hosts(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    with serving() as site:
        url = f"http://127.0.0.1:{site.port}"
        program.write_text(
            "import urllib.error, urllib.request\n"
            f"print(urllib.request.urlopen('{url}/a').read())\n"
            "try:\n    urllib.request.urlopen('http://other.test/')\n"
            "except urllib.error.HTTPError as error:\n    print(error.code)\n"
        )
        here = f"127.0.0.1:{site.port}"
        names = ["--backend", "subprocess", "--allow-host", here]
        names += ["--allow-host", "*.example.test:443"]
        done = toolcell("run", str(program), *names)
        told = toolcell("run", str(program), "--json", *names)
    bad = toolcell("run", str(program), "--allow-host", "example.test")

    assert done.stdout == b"b'hello /a'\n403\n", done.stderr
    assert b"network: other.test:80 refused: " in done.stderr
    records = json.loads(told.stdout)["connections"]
    assert [record["verdict"] for record in records] == ["allowed", "refused"]
    assert (bad.returncode, b"has no port" in bad.stderr) == (2, True)
