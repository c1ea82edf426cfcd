"""Inputs that are too large to travel with their program go as a file before it."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from toolcell.core import InvalidInputError
from toolcell.sandbox import Job, Limits, Sandbox, SandboxConfig, SandboxManager

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio

SIZE = 3_000_000
FILES = "import os\n[len(text), os.listdir('.')]"


async def test_a_run_gets_large_inputs_and_sees_no_file(sandbox: Sandbox) -> None:
    result = await sandbox.run(FILES, inputs={"text": "x" * SIZE})

    assert (result.status, result.value) == ("ok", [SIZE, ["main.py"]])
    assert result.artifacts == ()


async def test_arguments_and_standard_input_may_be_large(sandbox: Sandbox) -> None:
    code = "import sys\n[sum(map(len, sys.argv)), len(sys.stdin.buffer.read())]"
    argv = ["p", *("x" * 65_536 for _ in range(16))]
    result = await sandbox.run(code, argv=argv, stdin=bytes(SIZE))

    assert result.value == [1_048_577, SIZE]


async def test_the_largest_standard_input_arrives(sandbox: Sandbox) -> None:
    size = Limits().input_bytes
    code = "import sys\nlen(sys.stdin.buffer.read())"
    result = await sandbox.run(code, stdin=bytes(size))

    assert (result.status, result.value) == ("ok", size)


async def test_a_session_keeps_large_inputs(sandbox: Sandbox) -> None:
    async with sandbox.session() as session:
        first = await session.run(FILES, inputs={"text": "x" * SIZE})
        kept = await session.run("len(text)")
        fresh = await session.run(FILES, inputs={"text": "y" * SIZE}, fresh=True)
        fork = await session.fork()
        forked = await fork.run("[len(text), len(more)]", inputs={"more": "z" * SIZE})
        files = [file.path for file in await session.list_files()]
        assert [file.path for file in await fork.list_files()] == []

    assert first.value == fresh.value == [SIZE, []]
    assert (kept.value, forked.value, files) == (SIZE, [SIZE, SIZE], [])


async def test_streams_calls_and_batches_take_them(sandbox: Sandbox) -> None:
    events = [each async for each in sandbox.stream(FILES, inputs={"text": "x" * SIZE})]

    def length(text: str) -> int:
        return len(text)

    called = await sandbox.call(length, "x" * SIZE)
    jobs = [Job(code="len(text)", inputs={"text": "x" * SIZE}) for _ in range(2)]
    found = [each.result async for each in sandbox.map(jobs)]

    finished: Any = events[-1]
    assert finished.result.value == [SIZE, ["main.py"]]
    assert called == SIZE
    assert [each.value for each in found if each] == [SIZE, SIZE]


async def test_secrets_stay_out_of_the_file(sandbox: Sandbox) -> None:
    code = "import os\n[len(text), os.environ['KEY']]"
    secrets = {"KEY": SecretStr("s3")}
    result = await sandbox.run(code, inputs={"text": "x" * SIZE}, secrets=secrets)

    assert result.value == [SIZE, "s3"]


async def test_what_exceeds_the_limit_is_refused(sandbox: Sandbox) -> None:
    limits = Limits(input_bytes=100)
    for given in ({"inputs": {"a": "x" * 100}}, {"stdin": bytes(101)}):
        with pytest.raises(InvalidInputError, match=r"limits\.input_bytes"):
            await sandbox.run("1", limits=limits, **given)


async def test_what_fits_no_disk_is_refused(backend: BackendRow) -> None:
    config = backend.config(limits=Limits(disk_mib=1))
    async with SandboxManager(config) as sandbox, sandbox.session() as session:
        for run in (sandbox.run, session.run):
            with pytest.raises(InvalidInputError) as caught:
                await run("1", inputs={"text": "x" * SIZE})
            assert caught.value.details["reason"] == "no_space"
        assert await session.list_files() == ()
        assert (await session.run("6 * 7")).value == 42


async def test_a_session_that_takes_its_inputs_away_harms_itself_alone(
    backend: BackendRow,
) -> None:
    async with SandboxManager(backend.config()) as sandbox, sandbox.session() as own:
        thief = "while :; do rm -f .inputs-*; done"
        process = await own.exec(thief, background=True)
        result = await own.run("len(text)", inputs={"text": "x" * SIZE}, fresh=True)
        await process.kill()
        later = await own.run("len(text)", inputs={"text": "x" * SIZE}, fresh=True)

    if result.status != "ok":
        assert (result.exit_code, result.status) == (127, "exit")
        assert "the inputs were taken away" in result.stderr
    assert later.value == SIZE


async def test_the_last_resort_takes_them() -> None:
    config = SandboxConfig(backend="subprocess", minimum_isolation="process")
    from toolcell.sandbox.backends import namespaces

    def refuse(*_: object) -> None:
        from toolcell.core import SandboxUnavailableError

        raise SandboxUnavailableError("none", details={"kernel": "none"})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(namespaces.SubprocessBackend, "start", refuse)
        async with SandboxManager(config) as sandbox:
            result = await sandbox.run("len(text)", inputs={"text": "x" * SIZE})

    assert (result.isolation.level if result.isolation else "") == "process"
    assert result.value == SIZE
