"""Who names a runtime or an image gets Docker with it, or nothing runs at all."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.host import Host
from toolcell.sandbox import SandboxConfig, SandboxManager, run
from toolcell.sandbox.spi import diagnose, list_images

from ...conftest import apart, missing, why_no_docker
from ...support.toolcell_command import TOOLCELL, toolcell

pytestmark = [pytest.mark.anyio, pytest.mark.promise("N3")]

DEAD_ENGINE = "unix:///nowhere/docker.sock"
NAMED = [
    {"runtime": "runsc"},
    {"image": "toolcell-test/none:none"},
    {"image": "python:3.12-slim"},
]
MISSING = [{"runtime": "no-such-runtime"}, {"image": "toolcell-test/none:none"}]


def command_line(named: dict[str, str]) -> list[str]:
    return [word for name, value in named.items() for word in (f"--{name}", value)]


def environment(engine: str = DEAD_ENGINE) -> dict[str, str]:
    return {"DOCKER_HOST": engine, "PATH": "/usr/bin:/bin"}


@pytest.mark.promise("E-40")
@pytest.mark.parametrize("named", NAMED, ids=str)
async def test_a_manager_without_the_engine_does_not_start(
    named: dict[str, str],
) -> None:
    config = SandboxConfig(**named, docker_host=DEAD_ENGINE)  # type: ignore[arg-type]
    with pytest.raises(
        SandboxUnavailableError, match="no Docker engine answers"
    ) as told:
        async with SandboxManager(config):
            pass
    assert told.value.hint is not None
    assert "leave `runtime` and `image` out" in told.value.hint


@pytest.mark.parametrize(
    ("address", "told"),
    [
        ("nonsense", "the Docker SDK cannot use nonsense: "),
        (DEAD_ENGINE, f"no Docker engine answers at {DEAD_ENGINE}"),
        ("tcp://127.0.0.1:9", "no Docker engine answers at tcp://127.0.0.1:9"),
    ],
)
async def test_an_address_that_leads_nowhere_is_told_with_its_reason(
    address: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", address)
    with pytest.raises(SandboxUnavailableError, match=f"^{told}") as by_manager:
        async with SandboxManager(SandboxConfig(backend="docker")):
            pass
    with pytest.raises(SandboxUnavailableError, match=f"^{told}") as by_list:
        list_images()

    assert by_list.value.message == by_manager.value.message
    assert "subprocess" not in str(by_list.value.hint)


@pytest.mark.promise("E-40")
@pytest.mark.docker
@pytest.mark.parametrize("named", MISSING, ids=str)
async def test_an_engine_without_it_is_not_replaced(named: dict[str, str]) -> None:
    if why := why_no_docker(None):
        missing(why)
    with pytest.raises(SandboxUnavailableError, match="the Docker engine has no"):
        async with SandboxManager(SandboxConfig(**named)):  # type: ignore[arg-type]
            pass


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_the_synchronous_run_refuses(named: dict[str, str]) -> None:
    config = SandboxConfig(**named, docker_host=DEAD_ENGINE)  # type: ignore[arg-type]
    with pytest.raises(SandboxUnavailableError):
        apart(lambda: run("1", config=config))


@pytest.mark.parametrize("named", NAMED, ids=str)
def test_the_command_line_refuses_with_4(named: dict[str, str]) -> None:
    options = command_line(named)
    told = toolcell("run", "-", *options, env=environment(), stdin=b"print(1)")
    line = toolcell("run", "-", "--json", *options, env=environment(), stdin=b"1")
    repl = toolcell("repl", *options, env=environment(), stdin=b"print(1)\n")

    assert (told.returncode, told.stdout) == (4, b"")
    assert b"no Docker engine answers" in told.stderr
    assert (line.returncode, line.stdout) == (4, b"")
    assert json.loads(line.stderr)["error"]["kind"] == "sandbox.unavailable"
    assert (repl.returncode, repl.stdout) == (4, b"")


@pytest.mark.docker
@pytest.mark.parametrize("named", MISSING, ids=str)
def test_the_command_line_with_an_engine_refuses_with_4(named: dict[str, str]) -> None:
    if why := why_no_docker(None):
        missing(why)
    told = toolcell("run", "-", *command_line(named), stdin=b"print(1)")

    assert (told.returncode, told.stdout) == (4, b"")


def written(folder: Path, named: dict[str, str]) -> Path:
    lines = [f"{name} = {value!r}" for name, value in named.items()]
    path = folder / "toolcell.toml"
    path.write_text(
        "\n".join(["[sandbox]", *lines, f"docker_host = '{DEAD_ENGINE}'"])
        + "\n[tools]\nbuiltin = ['code']\n"
        + "[[policies]]\nagent_id = 'a'\nallow = ['run_python']\n"
    )
    return path


@pytest.mark.parametrize("named", NAMED, ids=str)
async def test_a_configured_host_does_not_open(
    tmp_path: Path, named: dict[str, str]
) -> None:
    path = written(tmp_path, named)
    with pytest.raises(SandboxUnavailableError, match="no Docker engine answers"):
        async with Host.from_config(path, environ={}):
            pass
    calling = ["call", "run_python", "--agent", "a", "--args", '{"code": "1"}']
    done = toolcell(*calling, "--config", str(path), env=environment())

    assert (done.returncode, done.stdout) == (4, b"")


async def test_an_image_without_docker_is_no_configuration() -> None:
    for named in NAMED:
        with pytest.raises(ConfigError, match="the subprocess backend has no"):
            SandboxConfig(backend="subprocess", **named)  # type: ignore[arg-type]


async def test_doctor_says_that_nothing_would_run() -> None:
    config = SandboxConfig(runtime="runsc", docker_host=DEAD_ENGINE)
    report = await diagnose(config)

    assert (report.backend, report.level) == (None, None)


def test_a_socket_that_is_not_open_to_the_user_is_said(tmp_path: Path) -> None:
    place = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as engine:
        engine.bind(str(place))
        engine.listen()
        place.chmod(0)
        done = subprocess.run(
            [*as_ordinary(), TOOLCELL, "run", "-", "--backend", "docker"],
            input=b"print(1)",
            env=environment(f"unix://{place}"),
            capture_output=True,
            timeout=90,
            check=False,
        )

    assert (done.returncode, done.stdout) == (4, b"")
    assert b"this user may not speak to the Docker engine at unix://" in done.stderr
    assert b"join the group" in done.stderr


def as_ordinary() -> list[str]:
    """Return what takes root's right to open every file away from a command."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]
