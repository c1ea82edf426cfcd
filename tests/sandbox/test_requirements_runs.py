"""What other systems promise or get wrong, one row a test, on every backend.

The rows are numbered by the reference inventory: GR and RG grampus, GA and RA gaia,
OR and RO orbiter and exo, LC, LT and RL locus, A admitted limits, X contradictions.
A test names its rows in its mark; `tests/promises.toml` says what each asks for.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from toolcell import core
from toolcell import sandbox as room
from toolcell.core import ConfigError, InvalidInputError, SandboxUnavailableError
from toolcell.sandbox import ExecutionResult, Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.spi import OpaqueValue

from ..conftest import IMAGE, BackendRow, level_here
from ..support.paths import ROOT

pytestmark = pytest.mark.anyio

NO_ENGINE = "tcp://127.0.0.1:9"


# --- choosing a backend ------------------------------------------------------


@pytest.mark.promise("GR-17")
@pytest.mark.parametrize("level", ["namespaces", "process", "container", "kernel"])
async def test_docker_asked_for_is_docker_or_an_error(level: Any) -> None:
    config = SandboxConfig(
        backend="docker", docker_host=NO_ENGINE, minimum_isolation=level
    )
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
        async with SandboxManager(config):
            pass


@pytest.mark.promise("GR-17", "A-05")
async def test_auto_falls_back_only_as_far_as_allowed() -> None:
    strict = SandboxConfig(docker_host=NO_ENGINE, minimum_isolation="container")
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
        async with SandboxManager(strict):
            pass

    async with SandboxManager(SandboxConfig(docker_host=NO_ENGINE)) as sandbox:
        notice, *_ = sandbox.notices
        result = await sandbox.run("1")

    assert notice.startswith("using the subprocess backend: no Docker engine answers")
    assert result.backend == "subprocess"
    assert result.isolation is not None
    assert result.isolation.level == level_here()


@pytest.mark.promise("GR-17", "A-05")
async def test_every_result_says_where_it_ran(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    result = await sandbox.run("1")

    assert sandbox.notices == ()
    assert result.backend == backend.options["backend"]
    assert result.isolation is not None
    level = {
        "subprocess": "namespaces",
        "cluster": "namespaces",
        "confined": "confined",
        "docker": "container",
        "runsc": "kernel",
    }
    assert result.isolation.level == level[backend.name]
    walls = {"landlock"} if backend.name == "confined" else {"pid", "net"}
    assert {*walls, "seccomp", "no_new_privileges"} <= set(result.isolation.layers)


@pytest.mark.promise("GR-22", "A-05", "RO-10")
async def test_the_weakest_walls_are_asked_for_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def no_namespaces(self: object) -> None:
        raise SandboxUnavailableError("no user namespaces here", details={"kernel": ""})

    start = "toolcell.sandbox.backends.namespaces.SubprocessBackend.start"
    monkeypatch.setattr(start, no_namespaces)
    with pytest.raises(SandboxUnavailableError, match="no user namespaces here"):
        async with SandboxManager(SandboxConfig(backend="subprocess")):
            pass

    config = SandboxConfig(backend="subprocess", minimum_isolation="process")
    async with SandboxManager(config) as sandbox:
        [notice] = sandbox.notices
        result = await sandbox.run("6 * 7")
        refused = await sandbox.run("import os")

    assert "only RestrictedPython and rlimits" in notice
    assert (result.status, result.value, refused.status) == ("ok", 42, "refused")
    assert result.isolation is not None
    assert result.isolation.level == "process"


# --- what goes in, and what comes out -----------------------------------------


@pytest.mark.promise("GR-21", "A-03")
async def test_inputs_cross_into_every_backend(sandbox: SandboxManager) -> None:
    inputs = {
        "text": "ä\0\n' \"$(rm -rf /)",
        "nested": {"list": [1, 2.5, None, True, {}], "big": 2**70},
    }
    result = await sandbox.run("[text, nested]", inputs=inputs)

    assert result.value == [inputs["text"], inputs["nested"]]


@pytest.mark.promise("GR-21", "A-03")
async def test_inputs_that_cannot_cross_are_an_error(sandbox: SandboxManager) -> None:
    with pytest.raises(InvalidInputError, match="not JSON values"):
        await sandbox.run("1", inputs={"function": print})


@pytest.mark.promise("GR-23", "RG-09")
async def test_a_result_tells_the_whole_story(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\n[1]"
    result = await sandbox.run(code)

    assert (result.status, result.value, result.exit_code) == ("ok", [1], 0)
    assert (result.stdout, result.stderr) == ("out\n", "err\n")
    assert (result.signal, result.exception, result.self_reported) == (
        None,
        None,
        False,
    )
    assert not result.truncated
    assert 0 < result.usage.wall_ms < 20_000
    # gVisor counts CPU time in ticks of 10 ms.
    assert 0 <= result.usage.cpu_ms < 20_000
    assert 1 << 20 < result.usage.peak_memory_bytes < 256 << 20
    assert result.backend == backend.options["backend"]


@pytest.mark.promise("RG-11")
async def test_the_exit_code_is_kept(sandbox: SandboxManager) -> None:
    result = await sandbox.run("print('out'); raise SystemExit(41)")

    assert (result.status, result.exit_code, result.stdout) == ("exit", 41, "out\n")


@pytest.mark.promise("RG-13")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("x = 6\nx * 7", 42),
        ("x = 42", None),
        ("None", None),
        ("{'a': [1, 'ö']}", {"a": [1, "ö"]}),
        ("def f():\n    return 1\nf()", 1),
    ],
)
async def test_the_last_expression_is_the_value(
    sandbox: SandboxManager, code: str, value: Any
) -> None:
    result = await sandbox.run(code)

    assert (result.status, result.value) == ("ok", value)


@pytest.mark.promise("RG-13")
async def test_a_value_that_is_not_json_is_described(sandbox: SandboxManager) -> None:
    result = await sandbox.run("{1, 2}")

    assert result.value == OpaqueValue(type="set", repr="{1, 2}")


@pytest.mark.promise("RG-30")
async def test_a_large_program_runs_and_is_on_no_command_line(
    sandbox: SandboxManager,
) -> None:
    code = "needle = 'f3a9'\n" + "total = 1  # padding\n" * 15_000
    code += "open('/proc/self/cmdline').read().count(needle), total\n"
    assert len(code) > 200_000
    result = await sandbox.run(code + "[needle in open('/proc/self/cmdline').read()]")

    assert (result.status, result.value) == ("ok", [False])


@pytest.mark.promise("RG-19")
async def test_output_is_capped_and_bad_bytes_spoil_nothing(
    sandbox: SandboxManager,
) -> None:
    code = """
import os
os.write(1, b"first \\xff\\x00 \\x1b[31m")
for _ in range(200):
    os.write(1, b"x" * 10_000)
os.write(1, b"last")
"""
    result = await sandbox.run(code, limits=Limits(output_bytes=5000))

    assert result.status == "ok"
    assert result.stdout.startswith("first \ufffd\0 \x1b[31m")
    assert result.stdout.endswith("last")
    assert len(result.stdout_bytes) <= 5000
    assert len(result.stdout_bytes) + result.truncated.stdout == 2_000_018


# --- the configuration ----------------------------------------------------------


@pytest.mark.promise("RG-02")
async def test_the_image_is_a_choice_and_may_be_pinned(backend: BackendRow) -> None:
    assert SandboxConfig().image == "python:3.12-slim"
    if backend.options["backend"] != "docker":
        return
    import docker

    client = docker.from_env()
    pinned = client.images.get(IMAGE).id
    client.close()
    async with SandboxManager(backend.config(image=pinned)) as sandbox:
        assert (await sandbox.run("1")).value == 1
    with pytest.raises(SandboxUnavailableError, match=r"docker pull no/such:image"):
        async with SandboxManager(backend.config(image="no/such:image")):
            pass


@pytest.mark.promise("RG-03")
async def test_there_is_no_network_on_any_backend(sandbox: SandboxManager) -> None:
    with pytest.raises(ConfigError):
        SandboxConfig.model_validate({"network_enabled": True})
    code = """
import socket
lines = open("/proc/net/dev").read().splitlines()[2:]
try:
    socket.create_connection(("192.0.2.1", 80), 5)
except OSError as error:
    why = error.strerror
[[line.split(":")[0].strip() for line in lines], why]
"""
    result = await sandbox.run(code)

    assert result.value in (
        [["lo"], "Network is unreachable"],
        [["lo"], "No route to host"],
    )


@pytest.mark.promise("RG-04", "RG-15", "RO-09")
async def test_memory_is_held_on_every_backend(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    code = "import os\ndata = b'x' * (200 << 20)\nprint('held')"
    result = await sandbox.run(code, limits=Limits(memory_mib=64))

    assert (result.status, result.stdout) == ("out_of_memory", "")
    holder = "cgroup" if backend.held_by_kernel else "watchdog"
    assert result.usage.enforced_by["memory_mib"] == holder


@pytest.mark.promise("RG-05", "RG-15")
async def test_cpu_time_is_held_on_every_backend(sandbox: SandboxManager) -> None:
    limits = Limits(cpu_seconds=0.5)
    result = await sandbox.run("while True: pass", limits=limits)

    assert result.status == "cpu_limit"
    assert 400 <= result.usage.cpu_ms <= 8000


@pytest.mark.promise("RG-06", "RO-12")
async def test_the_deadline_is_kept_inside(sandbox: SandboxManager) -> None:
    code = """
import signal
for number in range(1, 64):
    try:
        signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError):
        pass
print("deaf", flush=True)
while True: pass
"""
    limits = Limits(wall_seconds=2)
    with anyio.fail_after(60):
        result = await sandbox.run(code, limits=limits)

    assert (result.status, result.signal) == ("timeout", "SIGKILL")
    assert result.stdout == "deaf\n"


@pytest.mark.promise("RG-06", "X-11")
def test_the_default_deadline_is_30_seconds() -> None:
    assert Limits().wall_seconds == 30
    assert SandboxConfig().limits == Limits()


@pytest.mark.promise("X-11")
async def test_a_run_narrows_the_deadline_and_never_widens_it(
    sandbox: SandboxManager,
) -> None:
    with pytest.raises(InvalidInputError, match="wall_seconds"):
        await sandbox.run("1", limits=Limits(wall_seconds=61))


@pytest.mark.promise("RG-07")
@pytest.mark.parametrize("model", [SandboxConfig, Limits])
def test_no_field_is_dead(model: type[BaseModel]) -> None:
    with pytest.raises(ConfigError, match="allowed_paths"):
        SandboxConfig.model_validate({"allowed_paths": ["data"]})
    source = "".join(
        path.read_text()
        for path in (ROOT / "sandbox").rglob("*.py")
        if path.name != "config.py"
    )
    # The network has one mode, none, which every backend makes so unasked.
    fields = set(model.model_fields) - {"network"}
    assert [name for name in fields if not re.search(rf"\.{name}\b", source)] == []


@pytest.mark.promise("RG-10")
def test_making_a_manager_asks_nobody() -> None:
    script = f"""
import sys
from toolcell.sandbox import SandboxConfig, SandboxManager
SandboxManager(SandboxConfig(backend="docker", docker_host={NO_ENGINE!r}))
assert "docker" not in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.promise("RG-10")
async def test_sessions_and_a_pool(backend: BackendRow) -> None:
    async with SandboxManager(backend.config(pool=1)) as sandbox:
        async with sandbox.session() as session:
            await session.run("open('note', 'w').write('kept')", fresh=True)
            result = await session.run("open('note').read()", fresh=True)
        alone = await sandbox.run("import os; os.listdir('.')")

    assert result.value == "kept"
    assert alone.value == ["main.py"]


@pytest.mark.promise("RO-11")
@pytest.mark.parametrize(
    ("size", "fits"), [(100, True), (101, False)], ids=["at-limit", "over"]
)
async def test_code_has_a_size_limit(
    sandbox: SandboxManager, size: int, fits: bool
) -> None:
    limits = Limits(code_bytes=100)
    code = "1".rjust(size, "\n")
    if fits:
        assert (await sandbox.run(code, limits=limits)).value == 1
    else:
        with pytest.raises(InvalidInputError, match="101 bytes, the limit is 100"):
            await sandbox.run(code, limits=limits)


# --- one suite, one model, one face --------------------------------------------------


@pytest.mark.promise("RG-50", "RO-12")
@pytest.mark.parametrize(
    ("code", "status", "stdout", "stderr"),
    [
        ("print('hello')", "ok", "hello\n", ""),
        ("print(2 + 3)", "ok", "5\n", ""),
        ("import sys\nsys.stderr.write('no')", "ok", "", "no"),
        ("def broken(:", "error", "", "SyntaxError"),
        ("raise ValueError('bad')", "error", "", "ValueError: bad"),
        ("for i in range(3):\n    print(i)", "ok", "0\n1\n2\n", ""),
        ("import math, json\nprint(json.dumps(math.tau > 6))", "ok", "true\n", ""),
    ],
)
async def test_the_same_suite_holds_on_every_backend(
    sandbox: SandboxManager, code: str, status: str, stdout: str, stderr: str
) -> None:
    result = await sandbox.run(code)

    assert (result.status, result.stdout) == (status, stdout)
    assert stderr in result.stderr
    assert bool(stderr) is bool(result.stderr)


@pytest.mark.promise("RG-50", "X-10")
async def test_a_result_survives_the_trip_through_json(sandbox: SandboxManager) -> None:
    result = await sandbox.run("print('ö')\n1/0")
    there = json.loads(json.dumps(result.to_json()))

    back = ExecutionResult.model_validate(there)
    assert back.to_json() == result.to_json()
    assert (back.status, back.stdout, back.usage) == ("error", "ö\n", result.usage)
    assert back.exception == result.exception


def public_models(face: Any) -> list[type[BaseModel]]:
    return [
        value
        for name in face.__all__
        if isinstance(value := getattr(face, name), type)
        and issubclass(value, BaseModel)
    ]


@pytest.mark.promise("X-10")
def test_values_are_one_kind_of_model() -> None:
    models = public_models(core) + public_models(room)

    assert {"ToolCall", "Message", "ExecutionResult", "SandboxConfig"} <= {
        model.__name__ for model in models
    }
    for model in models:
        assert model.model_config.get("frozen") is True, model
        assert model.model_config.get("extra") == "forbid", model
        assert model.__doc__, model
