"""Sessions on nodes: commands whose end is known, and files of any size."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from pydantic import SecretStr

from toolcell.cluster import ClusterSandbox
from toolcell.cluster.driver.runs import ask, next_part
from toolcell.cluster.wire import link, message
from toolcell.cluster.wire.codec import read_result
from toolcell.cluster.wire.file_chunks import MAX_HEADERS_BYTES, receive_file
from toolcell.cluster.wire.link import Exchange
from toolcell.cluster.wire.message import WireMessage
from toolcell.core import CellLostError, InvalidInputError, SandboxError
from toolcell.sandbox import Finished, Limits
from toolcell.tools.spi import CodeSessions

from ..conftest import SUBPROCESS
from ..support.cluster.local import local_cluster

pytestmark = pytest.mark.anyio
MIB = 1024 * 1024


@pytest.fixture(scope="module")
async def sandbox() -> AsyncIterator[ClusterSandbox]:
    async with local_cluster(SUBPROCESS.config()) as cluster:
        yield cluster


async def test_the_end_of_a_command_is_known_unasked(sandbox: ClusterSandbox) -> None:
    async with sandbox.session() as session:
        quick = await session.exec("read line; exit 3", stdin="pipe")
        slow = await session.exec("sleep 600")
        assert session.processes() == (quick, slow)
        await quick.write(b"go\n")
        with anyio.fail_after(60):
            await quick.ended()
        assert (quick.running, slow.running) == (False, True)
        assert session.processes() == (slow,)
        assert (await quick.wait()).exit_code == 3
    with anyio.fail_after(60):
        await slow.ended()
    assert not slow.running


async def test_a_command_ends_whose_start_nobody_waits_for(
    sandbox: ClusterSandbox,
) -> None:
    async with sandbox.session() as session:
        wanted = {"options": {"command": ["sleep", "600"]}, "has_stdin": False}
        async with session._remote.exchange("exec", **wanted) as exchange:
            number = (await next_part(exchange)).fields["process"]
        about = session._remote.fields("process", process=number, do="wait")
        with anyio.fail_after(60):
            ended = read_result(await ask(session._link, about))

    assert ended.status == "cancelled"


async def test_a_context_has_the_files_alone(sandbox: ClusterSandbox) -> None:
    async with sandbox.session() as session:
        await session.run("x = 1\nopen('kept', 'w').write('here')")
        other = await session.context()
        found = await other.run("['x' in globals(), open('kept').read()]")
        assert found.value == [False, "here"]
        await other.aclose()
        assert (await session.run("x")).value == 1


async def test_a_stream_of_a_session_takes_secrets(sandbox: ClusterSandbox) -> None:
    async with sandbox.session() as session:
        code = "import os; os.environ['KEY']"
        given = {"KEY": SecretStr("hidden")}
        ends = [each async for each in session.stream(code, secrets=given)]
        assert isinstance(ends[-1], Finished)
        assert ends[-1].result.value == "hidden"


@pytest.mark.promise("JA10")
@pytest.mark.parametrize("is_idle", [True, False])
async def test_a_session_that_was_lost_with_its_node_says_so(is_idle: bool) -> None:
    async with (
        local_cluster(SUBPROCESS.config()) as sandbox,
        CodeSessions(sandbox) as sessions,
    ):
        with suppress(CellLostError):
            async with sessions.use("a", "key") as held:
                session = cast(Any, held.session)
                if not is_idle:
                    session._link.give_up("its machine is gone")
                    await session.run("1")
        session._link.give_up("its machine is gone")
        async with sessions.use("a", "key") as again:
            assert again is not held
            lost = again.lost_before

    assert f"are lost: the node {session.node} is lost: its machine is gone;" in lost


@pytest.fixture
def small_messages(monkeypatch: pytest.MonkeyPatch) -> int:
    """Messages of 1 MiB at most, in place of 512."""
    for module in (link, message):
        if hasattr(module, "MAX_MESSAGE_BYTES"):
            monkeypatch.setattr(module, "MAX_MESSAGE_BYTES", MIB)
    return MIB


async def test_files_pass_that_no_message_could_hold(
    sandbox: ClusterSandbox, small_messages: int, tmp_path: Path
) -> None:
    data = os.urandom(5 * small_messages + 1)
    source = tmp_path / "source"
    source.mkdir()
    (source / "large").write_bytes(data)
    async with sandbox.session() as session:
        assert await session.upload(source, "in") == 1
        assert await session.save(tmp_path / "saved") == ()
        assert await session.download(tmp_path / "back", "in") == 1
        assert (tmp_path / "back" / "in" / "large").read_bytes() == data
        # As on one machine, `max_bytes` bounds it.
        with pytest.raises(InvalidInputError):
            await session.download(tmp_path / "none", "in", max_bytes=MIB)
        assert not (tmp_path / "none").exists()
    async with sandbox.session() as session:
        await session.load(tmp_path / "saved")
        found = await session.run(
            "import hashlib; hashlib.sha256(open('in/large', 'rb').read()).hexdigest()"
        )
        assert found.value == sha256(data).hexdigest()


@pytest.mark.parametrize(
    "told",
    [
        {"offset": 1},
        {"offset": 0, "then": {"total": 3, "sha256": sha256(b"abd").hexdigest()}},
        {"offset": 0, "then": {"total": 2, "sha256": sha256(b"abc").hexdigest()}},
    ],
    ids=["offset", "bytes", "total"],
)
async def test_a_file_that_came_damaged_is_refused(
    tmp_path: Path, told: dict[str, Any]
) -> None:
    class Quiet:
        def send_soon(self, fields: dict[str, Any]) -> None:
            """Take what is told of the parts."""

    come = [
        WireMessage({"offset": told["offset"]}, (b"abc",)),
        WireMessage(told.get("then", {})),
    ]

    async def hear() -> WireMessage:
        return come.pop(0)

    target = tmp_path / "target"
    with pytest.raises(SandboxError) as caught:
        await receive_file(cast(Exchange, Quiet()), hear, target, 1000)
    assert caught.value.details["reason"] == "damaged"
    assert not target.exists()


async def test_a_driver_fills_no_disk_of_a_node(tmp_path: Path) -> None:
    """It may send what fits into a cell, and no more."""
    config = SUBPROCESS.config(limits=Limits(disk_mib=1))
    (tmp_path / "large").mkdir()
    with (tmp_path / "large" / "file").open("wb") as file:
        file.truncate(MIB + MAX_HEADERS_BYTES)
    async with local_cluster(config) as cluster, cluster.session() as session:
        with pytest.raises(InvalidInputError) as caught:
            await session.upload(tmp_path / "large")
        assert caught.value.details["reason"] == "too_large"
        assert await session.list_files() == ()
    async with local_cluster(config) as cluster, cluster.session() as session:
        await session.write_file("small", b"1")
        assert await session.save(tmp_path / "saved") == ()
