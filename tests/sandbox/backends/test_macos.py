"""macOS, pretended: Linux's names are taken away, and an engine answers."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from toolcell.sandbox.backends import docker_address, docker_engine
from toolcell.sandbox.machine import process_identity

from ...conftest import ENGINE_SOCKET, IMAGE, missing, why_no_docker
from ...support.child import Child
from ...support.paths import TESTS
from ...support.pretended_macos import PRETENDED_MACOS

BEHAVIOUR = """
import json, posixpath
from toolcell.sandbox import Limits, Network, SandboxConfig, SandboxManager
from toolcell.sandbox.spi import diagnose

async def main():
    said = {}
    config = SandboxConfig(image=sys.argv[1], pool=1, limits=Limits(wall_seconds=60))
    async with SandboxManager(config) as manager:
        first = await manager.run("print('out')\\n6 * 7", inputs={"x": 1})
        said["run"] = [first.value, first.stdout, first.isolation.level]
        said["bash"] = (await manager.run("echo $x", language="bash",
                        inputs={"x": "in"})).stdout
        said["timeout"] = (await manager.run("while True: pass",
                           limits=Limits(wall_seconds=0.5))).status
        said["call"] = await manager.call(posixpath.basename, "a/b")
        said["map"] = [each.result.value async for each in manager.map(["1", "2"])]
        async with manager.session() as session:
            await session.run("x = 5")
            said["state"] = (await session.run("x + 1")).value
            await session.write_file("a.txt", b"text")
            said["file"] = (await session.read_file("a.txt")).decode()
            process = await session.exec(["cat", "a.txt"])
            said["exec"] = (await process.wait()).stdout
            said["fork"] = (await (await session.fork()).run("x")).value
    report = await diagnose(config)
    said["doctor"] = [report.backend, report.level, report.summary]
    print(json.dumps(said))

anyio.run(main)
"""
TOOLS_OF_TESTS = """
import anyio._backends._trio, anyio.pytest_plugin, hypothesis, pytest, tempfile, xdist
tempfile._O_TMPFILE_WORKS = False
"""
SUITE = "sys.exit(pytest.main(sys.argv[1:]))"
ALONE = """
from toolcell.sandbox import SandboxConfig, SandboxManager
async def main():
    try:
        async with SandboxManager(SandboxConfig(image="none:none")): pass
    except Exception as error: print(error)
    try:
        async with SandboxManager(): pass
    except Exception as error: print(error)
anyio.run(main)
"""


def pretended(
    program: str, *arguments: str, before: str = "", **environment: str
) -> str:
    done = subprocess.run(
        [sys.executable, "-c", before + PRETENDED_MACOS + program, *arguments],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.promise("JE1")
@pytest.mark.docker
def test_cells_behave_without_what_only_linux_has(tmp_path: Path) -> None:
    if why := why_no_docker(None):
        missing(why)
    folder = context(tmp_path, "desktop-linux", f"unix://{ENGINE_SOCKET}")
    environment = {"DOCKER_CONFIG": str(folder), "DOCKER_HOST": ""}
    said: dict[str, Any] = json.loads(pretended(BEHAVIOUR, IMAGE, **environment))

    backend, level, summary = said.pop("doctor")
    assert (backend, level) == ("docker", "container")
    assert summary.startswith("programs run here in cells of 'container' isolation")
    assert said == {
        "run": [42, "out\n", "container"],
        "bash": "in\n",
        "timeout": "timeout",
        "call": "b",
        "map": [1, 2],
        "state": 6,
        "file": "text",
        "exec": "text",
        "fork": 5,
    }


@pytest.mark.promise("JE1")
@pytest.mark.docker
@pytest.mark.timeout(660)
def test_the_rows_of_behaviour_run_without_what_only_linux_has() -> None:
    if why := why_no_docker(None):
        missing(why)
    # What fails there fails this test, and that is recorded.
    environment = {"DOCKER_HOST": f"unix://{ENGINE_SOCKET}", "TOOLCELL_RECORD": ""}
    options = ("-q", "-n0", "--assert=plain", "-msmoke", "-kdocker and not runsc")
    files = [
        str(path)
        for path in (TESTS / "sandbox").rglob("test_*.py")
        if "@pytest.mark.smoke" in path.read_text()
    ]
    said = pretended(SUITE, *options, *files, before=TOOLS_OF_TESTS, **environment)

    passed = re.findall(r"^(\d+) passed\b.* in ", said, re.MULTILINE)
    assert passed and int(passed[-1]) >= 10, said


@pytest.mark.promise("JE2", "JE3")
def test_without_an_engine_or_an_image_the_one_command_is_said() -> None:
    if why_no_docker(None):
        missing("no engine answers")
    [named, _] = pretended(ALONE, DOCKER_HOST=f"unix://{ENGINE_SOCKET}").splitlines()
    [_, nothing] = pretended(ALONE, DOCKER_HOST="unix:///nowhere/s").splitlines()

    assert "no image 'none:none'" in named
    assert "(`docker pull none:none`" in named
    assert nothing.startswith("no Docker engine answers at unix:///nowhere/s;")
    assert "Docker Desktop, Colima" in nothing
    assert "process" not in nothing


def context(folder: Path, name: str, host: str, **facts_of: Any) -> Path:
    """Make a configuration folder of the `docker` command with a chosen context."""
    known = hashlib.sha256(name.encode()).hexdigest()
    meta = folder / "contexts" / "meta" / known / "meta.json"
    meta.parent.mkdir(parents=True)
    facts = {"Name": name, "Endpoints": {"docker": {"Host": host, **facts_of}}}
    meta.write_text(json.dumps(facts))
    (folder / "config.json").write_text(json.dumps({"currentContext": name}))
    return folder


@pytest.mark.promise("JE1")
@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, "unix:///of/a/context.sock"),
        ({"DOCKER_HOST": "tcp://named:2375"}, "tcp://named:2375"),
        ({"DOCKER_CONTEXT": "none"}, "machine"),
        ({"DOCKER_CONFIG": "/nowhere"}, "machine"),
        ({"DOCKER_CONFIG": "/nowhere", "socket": "gone"}, "user"),
    ],
    ids=["context", "host", "unknown context", "no context", "of one user"],
)
def test_the_engine_is_that_of_the_docker_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    found: str,
) -> None:
    folder = context(tmp_path / "docker", "colima", "unix:///of/a/context.sock")
    machine, user = tmp_path / "machine.sock", tmp_path / "run/docker.sock"
    user.parent.mkdir()
    for path in (machine, user):
        path.touch()
    if environment.pop("socket", None):
        machine.unlink()
    places = {"machine": f"unix://{machine}", "user": f"unix://{user}"}
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    variables = {"DOCKER_CONFIG": str(folder), "XDG_RUNTIME_DIR": str(user.parent)}
    for name, value in {**variables, **environment}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(docker_address, "DEFAULT", places["machine"])

    assert docker_address.address(None) == places.get(found, found)
    assert docker_address.address("tcp://configured:1") == "tcp://configured:1"


@pytest.mark.promise("JE1")
@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("files", ["ca", "ca cert key", ""])
def test_a_context_is_reached_by_its_tls_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: str, skip: bool
) -> None:
    asked: dict[str, Any] = {}

    class Client:
        api = SimpleNamespace(headers={})

        def __init__(self, **options: Any) -> None:
            asked.update(options)

    host = "tcp://far:2376"
    folder = context(tmp_path, "far", host, SkipTLSVerify=skip)
    known = hashlib.sha256(b"far").hexdigest()
    place = folder / "contexts" / "tls" / known / "docker"
    place.mkdir(parents=True)
    for name in files.split():
        (place / f"{name}.pem").touch()
    monkeypatch.setattr("docker.DockerClient", Client)
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(variable, raising=False)
    docker_engine.connect(None)

    assert asked["base_url"] == host
    tls = asked.get("tls")
    assert (tls is None) == (not files and not skip)
    if tls is not None:
        own = (str(place / "cert.pem"), str(place / "key.pem"))
        assert tls.cert == (own if "cert" in files else None)
        assert tls.ca_cert == (str(place / "ca.pem") if files else None)
        assert tls.verify is not skip

    asked.clear()
    docker_engine.connect("tcp://configured:1")
    assert "tls" not in asked


@pytest.mark.promise("JE7")
def test_processes_and_the_machine_have_names_of_their_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By `ps` and `sysctl`, for which a script stands here."""
    if shutil.which("ps") is None:
        missing("there is no ps (procps)")
    sysctl = tmp_path / "sysctl"
    sysctl.write_text('#!/bin/sh\n[ "$2" = kern.bootsessionuuid ] && echo 1B4E-7\n')
    sysctl.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(process_identity, "_PROC", tmp_path / "none")

    assert process_identity.machine_id.__wrapped__() == "1B4E-7"
    with Child(["sleep", "60"]) as child:
        started = process_identity.start_time(child.pid)
        name = f"{child.pid}-{started}"
        assert started and process_identity.lives(name)
        assert not process_identity.lives(f"{child.pid}-another")
        child.kill()
    assert not process_identity.lives(name)
