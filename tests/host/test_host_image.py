"""The image of the host: built, run as deploy/compose.yml runs it, and stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolcell.host import HostConfig

from ..conftest import IMAGE, missing, why_no_docker
from ..support.paths import ROOT
from ..support.project.deploy import DEPLOY, program, ran

kubernetes_validate = pytest.importorskip("kubernetes_validate")

TAG = "toolcell-test/host:latest"
SERVICE: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yml").read_text())[
    "services"
]["toolcell"]
CONFIG = ["--config", "/etc/toolcell/toolcell.toml"]


def docker(*arguments: str, check: bool = True) -> str:
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


def compose_options() -> list[str]:
    """Return the walls of the compose file, as `docker run` spells them."""
    options = ["--read-only"] if SERVICE["read_only"] else []
    options += [f"--cap-drop={each}" for each in SERVICE["cap_drop"]]
    options += [f"--security-opt={each}" for each in SERVICE["security_opt"]]
    options += [f"--tmpfs={each}" for each in SERVICE["tmpfs"]]
    return [*options, f"--pids-limit={SERVICE['pids_limit']}"]


@pytest.fixture(scope="module")
def image() -> str:
    why = why_no_docker(None)
    if why or shutil.which("docker") is None:
        missing(why or "there is no docker command")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [str(DEPLOY / "image" / "build"), IMAGE, TAG],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return TAG


@pytest.fixture
def volume(image: str) -> Iterator[str]:
    name = f"toolcell-test-{uuid.uuid4().hex[:12]}"
    docker("volume", "create", name)
    yield name
    docker("volume", "rm", "-f", name)


class Running:
    """A host in a container, on a port of this machine's loopback address."""

    def __init__(self, volume: str, config: Path) -> None:
        self.port = 0
        self.container = docker(
            *("run", "-d", "--network=host", *compose_options()),
            f"--volume={config}:/etc/toolcell/toolcell.toml:ro",
            f"--volume={volume}:/var/lib/toolcell",
            *(TAG, "serve", *CONFIG, "--rest", "127.0.0.1:0", "--json"),
        )

    def ask(
        self, path: str, token: str = "", body: Any = None
    ) -> tuple[int, dict[str, Any]]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())

    def wait(self) -> None:
        """Wait until it is ready."""
        give_up_at = time.monotonic() + 90
        while True:
            logs = docker("logs", self.container)
            if found := re.search(r"http://127\.0\.0\.1:(\d+)", logs):
                break
            assert time.monotonic() < give_up_at, logs
            time.sleep(0.05)
        self.port = int(found[1])
        assert self.ask("/readyz") == (200, {"status": "ready"})

    def end(self) -> int:
        docker("stop", "-t", "120", self.container)
        code = docker("inspect", "-f", "{{.State.ExitCode}}", self.container)
        docker("rm", "-f", self.container)
        return int(code)


@pytest.fixture
def readable_config(tmp_path: Path) -> Path:
    """The configuration of the compose file, where another user may read it."""
    target = tmp_path / "toolcell.toml"
    target.write_bytes((DEPLOY / "toolcell.toml").read_bytes())
    target.chmod(0o644)
    return target


@pytest.mark.docker
def test_the_image_serves_runs_programs_and_keeps_its_state(
    volume: str, readable_config: Path
) -> None:
    first = Running(volume, readable_config)
    try:
        first.wait()
        created = docker(
            *("exec", first.container, "toolcell", "tokens", "create"),
            *("--agent", "scout", *CONFIG),
        )
        found = re.search(r"tcl_\S+", created)
        assert found is not None
        token = found[0]
        code = "import os\nprint(os.path.exists('/var/lib/toolcell'))\n6 * 7"
        call = {"tool": "run_python", "arguments": {"code": code}}
        status, answer = first.ask("/v1/calls", token, call)
        content = answer["result"]["content"]
        ran_in = docker("exec", first.container, "id", "-u")
        probe = SERVICE["healthcheck"]["test"][1:]
        probe[-1] = probe[-1].replace("8931", str(first.port))
        probe[-1] = probe[-1].replace("timeout=5", "timeout=60")
        docker("exec", first.container, *probe)
    finally:
        code_of_first = first.end()
    second = Running(volume, readable_config)
    try:
        second.wait()
        records = second.ask("/v1/records", token)[1]["records"]
    finally:
        second.end()

    assert (status, content["value"], content["stdout"]) == (200, 42, "False\n")
    assert ran_in == "10000"
    assert code_of_first == 0
    assert [record["tool"] for record in records] == ["run_python"]


@pytest.mark.docker
def test_where_docker_gives_no_namespaces_cells_are_confined(
    image: str, tmp_path: Path
) -> None:
    """The compose file's `security_opt` gives more; the level is said without it."""
    program_file = tmp_path / "program.py"
    program_file.write_text("print(6 * 7)")
    mount = f"--volume={program_file}:/program.py:ro"
    done = subprocess.run(
        [
            *("docker", "run", "--rm", "--network=none", mount, image),
            *("run", "--backend", "subprocess", "/program.py"),
        ],
        capture_output=True,
        text=True,
    )

    assert (done.returncode, done.stdout) == (0, "42\n")
    assert "cells are 'confined'" in done.stderr


def test_the_compose_file_is_one_and_its_configuration_can_be_used() -> None:
    compose = program("docker-compose")
    ran(compose, "-f", str(DEPLOY / "compose.yml"), "config", "-q")
    config = HostConfig.from_file(DEPLOY / "toolcell.toml", environ={})

    assert config.profile == "production"
    assert SERVICE["ports"] == ["127.0.0.1:8931:8931"]
    assert not {"privileged", "cap_add", "network_mode"} & SERVICE.keys()


def manifests() -> dict[str, dict[str, Any]]:
    text = (DEPLOY / "kubernetes.yaml").read_text()
    return {each["kind"]: each for each in yaml.safe_load_all(text)}


def test_kubernetes_accepts_the_manifests() -> None:
    found = manifests()
    for document in found.values():
        kubernetes_validate.validate(document, "1.33", strict=True)

    assert set(found) == {
        *("ConfigMap", "PersistentVolumeClaim", "Deployment", "Service"),
        "NetworkPolicy",
    }


def test_the_manifests_agree_with_each_other_and_with_the_compose_file() -> None:
    found = manifests()
    text = found["ConfigMap"]["data"]["toolcell.toml"]
    plain = (DEPLOY / "toolcell.toml").read_text().partition("\n")[2]
    pod = found["Deployment"]["spec"]["template"]
    [container] = pod["spec"]["containers"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}

    assert text == plain
    labels = pod["metadata"]["labels"]
    for selector in (
        found["Deployment"]["spec"]["selector"]["matchLabels"],
        found["Service"]["spec"]["selector"],
        found["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"],
    ):
        assert selector == labels
    assert container["image"] == SERVICE["image"]
    assert set(mounts.values()) == {"/etc/toolcell", "/var/lib/toolcell", "/tmp"}
    assert mounts.keys() == {each["name"] for each in pod["spec"]["volumes"]}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "procMount": "Unmasked",
    }
    dockerfile = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    user = pod["spec"]["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in dockerfile
