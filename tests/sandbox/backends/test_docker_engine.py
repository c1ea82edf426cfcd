"""The engine may be absent, remote, gone in the middle, or lack what is asked for."""

from __future__ import annotations

import contextlib
import io
import socket
import tarfile
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from toolcell.core import CellLostError, SandboxUnavailableError
from toolcell.sandbox import Network, SandboxManager
from toolcell.sandbox.backends.container_spec import OWNER_LABEL
from toolcell.sandbox.machine import process_identity
from toolcell.sandbox.spi import build_image

from ...conftest import DOCKER, ENGINE_SOCKET, IMAGE, missing, why_no_docker
from ...support.cells.web_server import serving

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture(scope="module", autouse=True)
def engine() -> Iterator[Any]:
    """A client of the engine."""
    import docker

    if why := why_no_docker(None):
        missing(why)
    client = docker.from_env()
    yield client
    client.close()


class Relay:
    """A TCP door to the engine that can be shut in everybody's face."""

    def __init__(self) -> None:
        self._server = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self.address = f"tcp://127.0.0.1:{self._server.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                engine = socket.socket(socket.AF_UNIX)
                engine.connect(ENGINE_SOCKET)
                self._open += [client, engine]
                for pair in ((client, engine), (engine, client)):
                    threading.Thread(target=_copy, args=pair, daemon=True).start()

    def shut(self) -> None:
        # A plain close would leave the blocked accept one more connection.
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for end in self._open:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.promise("QD6")
async def test_a_remote_engine_works() -> None:
    relay = Relay()
    try:
        config = DOCKER.config(docker_host=relay.address)
        async with SandboxManager(config) as sandbox:
            assert (await sandbox.run("print('far'); 1")).value == 1
    finally:
        relay.shut()


async def test_programs_of_a_remote_engine_reach_out_from_here() -> None:
    """The way out is the cell's channel: the engine's machine connects nowhere."""
    relay = Relay()
    code = "import urllib.request\nurllib.request.urlopen(url).read().decode()"
    try:
        with serving() as site:
            here = f"127.0.0.1:{site.port}"
            config = DOCKER.config(
                docker_host=relay.address, network=Network.allow([here])
            )
            async with SandboxManager(config) as sandbox:
                inputs = {"url": f"http://{here}/far"}
                result = await sandbox.run(code, inputs=inputs)
    finally:
        relay.shut()

    assert result.value == "hello /far", result.stderr
    assert [connection.verdict for connection in result.connections] == ["allowed"]


@pytest.mark.promise("QD10")
async def test_an_engine_that_goes_away_loses_the_cell(engine: Any) -> None:
    relay = Relay()
    before = containers(engine)
    up = anyio.Event()
    code = "print('up', flush=True)\nimport time; time.sleep(600)"
    async with SandboxManager(DOCKER.config(docker_host=relay.address)) as sandbox:
        async with anyio.create_task_group() as tasks:

            async def shut() -> None:
                await up.wait()
                relay.shut()

            tasks.start_soon(shut)
            with pytest.raises(CellLostError):
                await sandbox.run(code, on_output=lambda *_: up.set())
        with pytest.raises(SandboxUnavailableError):
            await sandbox.run("1")

    await no_more_containers(engine, before)


def containers(engine: Any) -> set[str]:
    """Return the containers of this process; managers of other tests have theirs."""
    ours = {"label": f"{OWNER_LABEL}={process_identity.this_process()}"}
    return {
        container["Id"] for container in engine.api.containers(all=True, filters=ours)
    }


async def no_more_containers(engine: Any, before: set[str]) -> None:
    """Wait until none is new; the engine removes them itself, when it gets to it."""
    with anyio.fail_after(240):
        while containers(engine) - before:
            await anyio.sleep(0.05)


async def test_a_missing_image_names_the_fix() -> None:
    with pytest.raises(SandboxUnavailableError, match="docker pull no/such:image"):
        async with SandboxManager(DOCKER.config(image="no/such:image")):
            pass


async def test_a_missing_runtime_lists_what_there_is() -> None:
    with pytest.raises(SandboxUnavailableError, match=r"no runtime 'nope'.*runc"):
        async with SandboxManager(DOCKER.config(runtime="nope")):
            pass


@pytest.mark.promise("QD2")
async def test_an_image_without_python3_is_said(engine: Any) -> None:
    image = _image_of(engine, {"bin/sh": b"#!"})
    before = containers(engine)
    try:
        with pytest.raises(SandboxUnavailableError, match="has no python3"):
            async with SandboxManager(DOCKER.config(image=image)) as sandbox:
                await sandbox.run("1")
    finally:
        engine.images.remove(image, force=True)
    await no_more_containers(engine, before)


def _image_of(engine: Any, files: dict[str, bytes]) -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o755
            archive.addfile(entry, io.BytesIO(data))
    tag = "toolcell-test/empty:latest"
    engine.api.import_image_from_data(buffer.getvalue(), "toolcell-test/empty")
    return tag


async def test_a_manager_stays_with_the_image_that_it_found(engine: Any) -> None:
    """What the first cell compiled of ours is for cells of the same Python only."""
    name = "toolcell-test/moves"
    code = "import sys\nany(getattr(f, 'compiled', 0) for f in sys.meta_path)"
    try:
        engine.images.get(IMAGE).tag(name)
        async with SandboxManager(DOCKER.config(image=name)) as sandbox:
            first = await sandbox.run(code)
            empty = _image_of(engine, {"bin/sh": b"#!"})
            engine.images.get(empty).tag(name)
            second = await sandbox.run(code)
            with pytest.raises(SandboxUnavailableError, match="has no python3"):
                async with SandboxManager(DOCKER.config(image=name)) as other:
                    await other.run("1")
    finally:
        for tag in (name, "toolcell-test/empty"):
            engine.images.remove(tag, force=True)

    assert (first.value, second.value) == (True, False)


async def test_a_python_without_ctypes_is_enough(engine: Any) -> None:
    """The engine's own layers stand in for those that need ctypes."""
    remove = "import _ctypes, os; os.remove(_ctypes.__file__)"
    dockerfile = f"FROM {IMAGE}\nRUN python3 -c '{remove}'"
    tag = "toolcell-test/no-ctypes:latest"
    engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
    code = "status = open('/proc/self/status').read()\n'Seccomp:\\t2' in status"
    try:
        async with SandboxManager(DOCKER.config(image=tag)) as sandbox:
            result = await sandbox.run(code)
    finally:
        engine.images.remove(tag, force=True)

    assert (result.status, result.value) == ("ok", True)


@pytest.mark.promise("QD4")
async def test_commands_are_found_by_the_path_of_the_image(engine: Any) -> None:
    dockerfile = (
        f"FROM {IMAGE}\nRUN mkdir -p /opt/own/bin && cd /opt/own/bin && "
        "printf '#!/bin/sh\\necho own' > own-tool && chmod 755 own-tool\n"
        "ENV PATH=.:/opt/own/bin:/usr/local/bin:/usr/bin:/bin"
    )
    tag = "toolcell-test/own-path:latest"
    engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
    try:
        async with SandboxManager(DOCKER.config(image=tag)) as sandbox:
            shell = await sandbox.run("own-tool; echo $PATH", language="bash")
    finally:
        engine.images.remove(tag, force=True)

    path = "/python/bin:/work/.local/bin:/opt/own/bin:/usr/local/bin:/usr/bin:/bin"
    assert shell.stdout == f"own\n{path}:/node/bin\n", shell.stderr


@pytest.mark.promise("QD2")
async def test_what_an_image_says_of_its_start_counts_for_nothing(engine: Any) -> None:
    dockerfile = (
        f"FROM {IMAGE}\nENV LD_PRELOAD=/none.so PYTHONHOME=/none PYTHONPATH=/none "
        "TZ=Asia/Tokyo HTTP_PROXY=http://127.0.0.1:1\n"
        'HEALTHCHECK CMD exit 1\nSTOPSIGNAL SIGUSR1\nENTRYPOINT ["/none"]\n'
        "WORKDIR /none\nUSER 4242"
    )
    tag = "toolcell-test/own-start:latest"
    engine.images.build(fileobj=io.BytesIO(dockerfile.encode()), tag=tag, rm=True)
    code = "import os\n[n for n in os.environ if n in names] + [os.getcwd()]"
    names = ["LD_PRELOAD", "PYTHONHOME", "PYTHONPATH", "TZ", "HTTP_PROXY"]
    try:
        async with SandboxManager(DOCKER.config(image=tag)) as sandbox:
            result = await sandbox.run(code, inputs={"names": names})
    finally:
        engine.images.remove(tag, force=True)

    assert result.value == ["/work"], result.stderr


@pytest.mark.promise("S15")
async def test_the_shipped_image_builds_and_runs() -> None:
    steps: list[tuple[int, int]] = []
    tag = build_image(
        "python",
        base=IMAGE,
        tag="toolcell-test/python:latest",
        on_step=lambda done, total, _: steps.append((done, total)),
    )
    async with SandboxManager(DOCKER.config(image=tag)) as sandbox:
        assert (await sandbox.run("print('built'); 2")).value == 2
        code = "command -v curl bc less >/dev/null && python -c 'print(3)'"
        assert (await sandbox.run(code, language="bash")).stdout == "3\n"

    assert steps[-1][0] == steps[-1][1] == len(steps)
