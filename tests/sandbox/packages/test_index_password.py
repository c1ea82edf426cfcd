"""The password of an index: for it alone, and in no cell, argument or message."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from toolcell.core import ConfigError, PackageError
from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager

from ...conftest import SUBPROCESS
from ...support.cells.package_index import BACKEND, Index, open_to_cells
from ...support.cells.web_server import running

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-7")]

PASSWORD = "sword/fish+of=the:host"
LOGIN = f"Basic {base64.b64encode(f'reader:{PASSWORD}'.encode()).decode()}"
SETUP = "setup(name='made', code='x = 1')"


class Site(SimpleHTTPRequestHandler):
    """Serves the files of an index, or leads to another server that does."""

    root: str
    wants: str | None
    elsewhere: str
    led: tuple[str, ...]
    logins: list[str | None]
    arguments: bytes

    def __init__(self, *args: Any) -> None:
        super().__init__(*args, directory=self.root)

    def do_GET(self) -> None:
        login = self.headers["Authorization"]
        self.logins.append(login)
        # uv waits for this answer, so it is alive.
        for file in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                type(self).arguments += file.read_bytes()
            except OSError:
                continue
        if self.wants not in (None, login):
            self.send_response(401, f"not {PASSWORD}")
            self.send_header("WWW-Authenticate", "Basic")
            self.end_headers()
        elif self.path.endswith(self.led):
            self.send_response(302)
            self.send_header("Location", self.elsewhere + self.path)
            self.end_headers()
        else:
            super().do_GET()

    def log_message(self, *_: Any) -> None:
        """Be quiet."""


class Servers:
    """An index that wants a password, and another server with the same files."""

    def __init__(self, root: Path) -> None:
        self.files = Index(root)
        self.own, own = self._handler(LOGIN)
        self.other, other = self._handler(None)
        self.servers = own, other
        self.url = f"http://reader@127.0.0.1:{own.server_port}/simple"
        self.other_url = f"http://127.0.0.1:{other.server_port}"

    def _handler(self, wants: str | None) -> tuple[Any, ThreadingHTTPServer]:
        facts = {"root": str(self.files.root), "wants": wants, "led": ()}
        handler: Any = type("Bound", (Site,), {**facts, "logins": [], "arguments": b""})
        return handler, ThreadingHTTPServer(("127.0.0.1", 0), handler)

    def config(self, folder: Path, *build: str, **more: Any) -> SandboxConfig:
        open_to_cells(folder / "store")
        secret = folder / "password"
        if not secret.exists():
            secret.write_text(PASSWORD + "\n")
        settings = {"index_password": f"file:{secret}", "folder": f"{folder}/store"}
        rules = PackageRules(
            allow=("*",), build=build, index_url=self.url, **(settings | more)
        )
        return SUBPROCESS.config(package_rules=rules)


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[Servers]:
    root = tmp_path / "index"
    root.mkdir()
    made = Servers(root)
    made.files.wheel("kind", {"kind.py": "import leaf\n"}, needs="leaf")
    made.files.wheel("leaf", {"leaf.py": ""})
    hooks = {"setuptools/__init__.py": "", "setuptools/build_meta.py": BACKEND}
    made.files.wheel("setuptools", hooks)
    made.files.source("made", SETUP)
    first, second = made.servers
    with running(first), running(second):
        yield made


async def test_a_redirect_to_no_address_is_a_package_error(
    tmp_path: Path, servers: Servers
) -> None:
    servers.own.elsewhere, servers.own.led = "http://127.0.0.1:99999", (".tar.gz",)
    async with SandboxManager(servers.config(tmp_path, "made")) as manager:
        with pytest.raises(PackageError, match="Port out of range"):
            await manager.install(["made"])


def written(folder: Path) -> bytes:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return b"".join(file.read_bytes() for file in files)


@pytest.mark.promise("QP14")
async def test_an_index_gets_its_password_and_nothing_else_has_it(
    tmp_path: Path, servers: Servers
) -> None:
    config = servers.config(tmp_path)
    steps: list[str] = []
    code = "import kind, os\nstr(dict(os.environ))"
    async with SandboxManager(config) as manager:
        await manager.install(["kind"], on_step=steps.append)
        result = await manager.run(code, packages=["kind"])

    assert result.status == "ok", result.stderr
    assert set(servers.own.logins) == {LOGIN}
    assert b"uv\0pip\0" in servers.own.arguments
    assert PASSWORD not in repr((result, steps, config))
    kept = servers.own.arguments + written(tmp_path / "store")
    for text in (PASSWORD, quote(PASSWORD, safe=""), LOGIN.removeprefix("Basic ")):
        assert text.encode() not in kept


@pytest.mark.parametrize("led", [("/",), (".whl", ".tar.gz")])
async def test_a_redirect_to_another_host_does_not_carry_it(
    tmp_path: Path, servers: Servers, led: tuple[str, ...]
) -> None:
    servers.own.elsewhere, servers.own.led = servers.other_url, led
    async with SandboxManager(servers.config(tmp_path, "made")) as manager:
        await manager.install(["kind", "made"])

    assert set(servers.own.logins) == {LOGIN}
    assert set(servers.other.logins) == {None}


async def test_files_of_an_index_at_another_host_do_not_get_it(
    tmp_path: Path, servers: Servers
) -> None:
    for page in servers.files.simple.glob("*/index.html"):
        text = page.read_text()
        there = f'href="{servers.other_url}/simple/{page.parent.name}/'
        page.write_text(text.replace('href="', there))
    async with SandboxManager(servers.config(tmp_path, "made")) as manager:
        await manager.install(["kind", "made"])

    assert set(servers.own.logins) == {LOGIN}
    assert set(servers.other.logins) == {None}


async def test_it_is_read_once(tmp_path: Path, servers: Servers) -> None:
    config = servers.config(tmp_path, "made")
    async with SandboxManager(config) as manager:
        (tmp_path / "password").unlink()
        result = await manager.run("import made\nmade.x", packages=["made"])

    assert result.value == 1, result.stderr
    assert set(servers.own.logins) == {LOGIN}


@pytest.mark.parametrize("build", [(), ("made",)])
async def test_what_a_server_says_does_not_show_it(
    tmp_path: Path, servers: Servers, build: tuple[str, ...]
) -> None:
    steps: list[str] = []
    async with SandboxManager(servers.config(tmp_path, *build)) as manager:
        if build:
            page = servers.files.simple / "made" / "index.html"
            there = f'href="{servers.other_url}/simple/made/'
            page.write_text(page.read_text().replace('href="', there))
            servers.other.wants = "another"
        else:
            servers.own.wants = "another"
        with pytest.raises(PackageError, match="401") as caught:
            await manager.install(["made"], on_step=steps.append)

    assert PASSWORD not in repr((caught.value, caught.value.details, steps))


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"index_url": "http://example.test/"}, "needs an index_url of https"),
        # The name that a program's own servers have in its cell is any host's here.
        ({"index_url": "http://cell/"}, "needs an index_url of https"),
        ({"index_url": None}, "needs an index_url of https"),
        ({"index_url": "https://u:swordfish@example.test/"}, "named in index_password"),
        ({"index_password": "swordfish"}, "named, never written"),
    ],
)
def test_a_password_that_others_could_read_is_refused(
    settings: dict[str, Any], told: str
) -> None:
    plain = {"index_url": "https://u@example.test/", "index_password": "env:P"}
    with pytest.raises(ConfigError, match=told) as caught:
        PackageRules(**(plain | settings))
    assert "swordfish" not in str(caught.value)


@pytest.mark.parametrize("data", [None, b"", b"a\0b", b"\xff"])
async def test_a_password_that_cannot_be_read_is_named_at_the_start(
    tmp_path: Path, servers: Servers, data: bytes | None
) -> None:
    config = servers.config(tmp_path)
    secret = tmp_path / "password"
    secret.unlink() if data is None else secret.write_bytes(data)
    with pytest.raises(ConfigError, match=str(secret)):
        await SandboxManager.open(config)
