"""Ways out for data: networks, sockets, the host's files and variables."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import SandboxManager, Session

from ..conftest import BackendRow
from ..support.attacks.as_programs import attempt, program, value_of
from ..support.attacks.programs import host_addresses, ways_out
from ..support.paths import ROOT

pytestmark = pytest.mark.anyio


@dataclass
class Listeners:
    """Sockets of the host that nothing in a cell may reach."""

    tcp_port: int
    udp_port: int
    abstract: str
    path: str
    heard: list[str] = field(default_factory=list)


@pytest.fixture
def listeners(tmp_path: Path) -> Iterator[Listeners]:
    tcp, udp = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
    abstract, path = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    name = f"toolcell-test-{secrets.token_hex(8)}"
    tcp.bind(("0.0.0.0", 0))
    udp.bind(("0.0.0.0", 0))
    abstract.bind("\0" + name)
    path.bind(str(tmp_path / "socket"))
    found = Listeners(
        tcp_port=tcp.getsockname()[1],
        udp_port=udp.getsockname()[1],
        abstract=name,
        path=str(tmp_path / "socket"),
    )
    for listener in (tcp, abstract, path):
        listener.listen()
    for listener in (tcp, udp, abstract, path):
        listener.setblocking(False)
    yield found
    # Whatever had been sent would be waiting in the kernel by now.
    for listener in (tcp, abstract, path):
        try:
            listener.accept()[0].close()
            found.heard.append(str(listener.family))
        except BlockingIOError:
            pass
        listener.close()
    try:
        udp.recv(1)
        found.heard.append("udp")
    except BlockingIOError:
        pass
    udp.close()
    assert found.heard == []


@pytest.mark.promise("E-65", "E-66", "E-67", "E-69")
async def test_no_byte_leaves_over_a_network(
    cell: Session, listeners: Listeners
) -> None:
    inputs = {
        "addresses": host_addresses(),
        "tcp_port": listeners.tcp_port,
        "udp_port": listeners.udp_port,
        "abstract": listeners.abstract,
        "path": listeners.path,
    }
    said = await value_of(cell, program(ways_out, attempt), **inputs)

    assert {name: how for name, how in said.items() if how == "done"} == {}


@pytest.mark.promise("E-65", "E-67")
async def test_a_cell_has_only_its_own_loopback(
    cell: Session, backend: BackendRow
) -> None:
    code = "\n".join(
        [
            "import socket",
            "server = socket.create_server(('127.0.0.1', 0))",
            "client = socket.create_connection(server.getsockname(), 2)",
            "with open('/proc/net/dev') as file:",
            "    lines = file.read().splitlines()[2:]",
            "[line.split(':')[0].strip() for line in lines]",
        ]
    )
    names = await value_of(cell, code)

    # Kernels put unconfigured tunnel devices into every new network namespace.
    assert "lo" in names
    assert not [name for name in names if name.startswith(("eth", "en", "veth", "wl"))]


@pytest.fixture
def planted(tmp_path: Path) -> Iterator[dict[str, Any]]:
    """Plant canaries where a program of the same user would find them."""
    secret = f"canary-{secrets.token_hex(16)}"
    in_tmp = tmp_path / "secret.txt"
    in_tmp.write_text(secret)
    in_tmp.chmod(0o644)
    with tempfile.NamedTemporaryFile("w", dir=Path.home(), prefix=".toolcell") as file:
        file.write(secret)
        file.flush()
        os.chmod(file.name, 0o644)
        yield {"secret": secret, "paths": [str(in_tmp), file.name]}


def search(paths: list[str], secret_head: str, folders: list[str]) -> dict[str, Any]:
    import os

    found = [path for path in paths if attempt(lambda p=path: open(p)) == "done"]  # type: ignore[misc]
    for path in paths:
        through = "/proc/1/root" + path
        if attempt(lambda p=through: open(p)) == "done":  # type: ignore[misc]
            found.append(through)
    listed = []
    for folder in folders:
        if attempt(lambda f=folder: os.listdir(f)) == "done":  # type: ignore[misc]
            listed += [f"{folder}/{name}" for name in os.listdir(folder)]
    seen = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{pid}/{name}", "rb") as file:
                    text = file.read().decode("utf-8", "replace")
            except OSError:
                continue
            if secret_head in text:
                seen.append(f"{pid}/{name}")
    return {
        "found": found,
        "listed": listed,
        "seen": seen,
        "environment": dict(os.environ),
        "through root": os.path.exists("/proc/1/cwd/etc"),
    }


@pytest.mark.promise("E-38", "E-41", "E-70")
async def test_the_hosts_files_and_variables_are_not_there(
    sandbox: SandboxManager, planted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLCELL_TEST_SECRET", planted["secret"])
    head = planted["secret"][:20]
    inputs = {
        "paths": planted["paths"],
        "secret_head": head,
        "folders": [
            str(Path.home()),
            f"{Path.home()}/.ssh",
            str(ROOT),
            "/home",
            "/etc/ssl",
        ],
    }
    # A manager that starts with the variable set: the launcher inherits nothing.
    async with SandboxManager(sandbox.config) as manager:
        code = program(search, attempt)
        result = await manager.run(code, inputs=inputs)

    assert result.status == "ok", result.stderr
    said: Any = result.value
    assert (said["found"], said["seen"]) == ([], [])
    assert set(said["environment"]) == {
        *("PATH", "HOME", "TMPDIR", "LANG", "USER", "LOGNAME"),
        *("PYTHONDONTWRITEBYTECODE", "MPLBACKEND"),
    }
    # Of the folders only those that lead to the interpreter may exist.
    interpreter = os.path.realpath(os.path.join(os.__file__, "../../.."))
    ours = {str(ROOT / path.name) for path in ROOT.iterdir()}
    assert ours.isdisjoint(said["listed"])
    for path in said["listed"]:
        assert interpreter.startswith(path) or path.startswith("/etc/"), path


@pytest.mark.promise("E-70")
async def test_the_interpreters_folder_shows_no_packages_secrets(
    cell: Session, backend: BackendRow
) -> None:
    names = (".bash_history", ".netrc", ".pypirc", ".aws", ".ssh", ".git-credentials")
    code = f"""
import os
found = []
for folder, folders, files in os.walk("/"):
    if folder.startswith(("/proc", "/sys")):
        folders.clear()
    found += [f"{{folder}}/{{n}}" for n in (*folders, *files) if n in {names!r}]
found
"""
    assert await value_of(cell, code) == []


@pytest.mark.promise("E-103")
async def test_errors_tell_nothing_of_the_host(
    sandbox: SandboxManager, cell: Session
) -> None:
    programs = [
        "open('/nowhere')",
        "import nowhere",
        "1 / 0",
        "(",
        "raise SystemExit('why')",
        "class A:\n    def __repr__(self): return 1 / 0\nA()",
    ]
    for code in programs:
        result = await cell.run(code, fresh=True)
        told = f"{result.stdout}{result.stderr}{result.exception}{result.value}"
        assert str(ROOT) not in told
        assert os.path.dirname(os.__file__) not in told
        assert "toolcell" not in told
        assert socket.gethostname() not in told
