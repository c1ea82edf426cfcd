"""What `toolcell cluster manifest` prints, as Kubernetes and Ray read it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from toolcell.core import ConfigError
from toolcell.host import HostConfig
from toolcell.host.cli.machine.cluster_manifest import cluster_manifest
from toolcell.host.cli.machine.kuberay_manifest import kuberay_manifest

from ..support.cluster import kuberay
from ..support.toolcell_command import toolcell

kubernetes_validate = pytest.importorskip("kubernetes_validate")

REDIS = """
[cluster]
directory = "env:DIRECTORY"
token = "env:TOKEN"
listen = "0.0.0.0:8470"
"""
RAY = """
[sandbox]
max_concurrency = 32
limits = { memory_mib = 512, cpus = 0.5 }

[cluster]
address = "auto"
"""
CREDENTIAL = """
[sandbox.network]
mode = "guarded"
inspect = ["api.example.org:443"]

[[sandbox.credentials]]
name = "api"
value = "env:API"
hosts = ["api.example.org:443"]
agents = ["web/builder"]
variable = "API_TOKEN"
"""
IMAGE = "registry.example/toolcell:1"
# As the autoscaler beside a head of KubeRay does.
AUTOSCALER = """
import json, sys
from ray.autoscaler._private.kuberay import autoscaling_config
found = json.load(sys.stdin)
found["metadata"]["namespace"] = "default"
made = autoscaling_config._derive_autoscaling_config_from_ray_cr(found)
print(json.dumps(made))
"""


def manifest(path: Path, *options: str, code: int = 0) -> Any:
    """Return the objects that the command prints, or how it is refused."""
    whole = ("--image", IMAGE, "--config", str(path), *options)
    done = toolcell("cluster", "manifest", *whole)
    assert done.returncode == code, done.stderr
    return list(yaml.safe_load_all(done.stdout)) if not code else done.stderr.decode()


def valid(found: dict[str, Any]) -> None:
    kubernetes_validate.validate(found, "1.33", strict=True)


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "toolcell.toml"


def test_a_daemonset_fits_the_schema_of_kubernetes(config: Path) -> None:
    config.write_text(REDIS)
    settings, nodes = manifest(config)

    for document in (settings, nodes):
        valid(document)
    assert settings["data"]["toolcell.toml"] == REDIS
    [container] = nodes["spec"]["template"]["spec"]["containers"]
    variables = {each["name"]: each["valueFrom"] for each in container["env"]}
    assert variables["TOKEN"] == {"secretKeyRef": {"name": "toolcell", "key": "TOKEN"}}
    assert set(variables) == {
        "DIRECTORY",
        "TOKEN",
        "TOOLCELL__CLUSTER__NODE",
        "TOOLCELL__CLUSTER__PUBLIC_HOST",
    }
    assert container["ports"] == [{"name": "link", "containerPort": 8470}]


def test_a_daemonset_has_the_variables_of_keys_and_credentials(config: Path) -> None:
    drivers = 'drivers = { web = "env:WEB" }'
    config.write_text(REDIS + drivers + CREDENTIAL)
    text = config.read_text()
    _, nodes = cluster_manifest(HostConfig.from_file(config), text, IMAGE)

    [container] = nodes["spec"]["template"]["spec"]["containers"]
    secret = [each["name"] for each in container["env"] if "__" not in each["name"]]
    assert secret == ["DIRECTORY", "TOKEN", "WEB", "API"]


def test_a_ray_cluster_fits_kuberay_and_the_schema_of_kubernetes(config: Path) -> None:
    config.write_text(RAY)
    options = ("--max-nodes", "40", "--redis", "redis.example:6379")
    settings, cluster = manifest(config, "--kind", "kuberay", *options)

    valid(settings)
    assert settings["data"]["toolcell.toml"] == RAY
    pods = kuberay.pods(cluster)
    for pod in pods:
        valid(pod)
        [container] = pod["spec"]["containers"]
        assert environ(container["env"]) == {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": {"name": "toolcell", "key": "token"},
            "RAY_worker_niceness": "0",
            "RAY_gcs_rpc_server_reconnect_timeout_s": "86400",
        }
    head, worker = (pod["spec"]["containers"][0] for pod in pods)
    assert "securityContext" not in head
    assert worker["securityContext"] == {"privileged": True}
    spec = cluster["spec"]
    assert spec["autoscalerOptions"]["env"] == head["env"]
    stored = spec["gcsFaultToleranceOptions"]
    assert stored["redisAddress"] == "redis.example:6379"
    assert "value" not in stored["redisPassword"]
    [_, plain] = manifest(config, "--kind", "kuberay")
    assert "gcsFaultToleranceOptions" not in plain["spec"]


def environ(found: list[dict[str, Any]]) -> dict[str, Any]:
    """Return variables with their values, or the secrets that have them."""
    return {
        each["name"]: each.get("value") or each["valueFrom"]["secretKeyRef"]
        for each in found
    }


def test_rays_autoscaler_reads_how_many_slots_a_node_has(config: Path) -> None:
    config.write_text(RAY)
    [_, cluster] = manifest(
        config, "--kind", "kuberay", "--min-nodes", "2", "--max-nodes", "40"
    )
    done = subprocess.run(
        [sys.executable, "-c", AUTOSCALER],
        input=json.dumps(cluster),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    kinds = found["available_node_types"]
    assert "toolcell" not in kinds["headgroup"]["resources"]
    nodes = kinds["nodes"]
    assert (nodes["min_workers"], nodes["max_workers"]) == (2, 40)
    memory = (32 * 512 + 2048) * 2**20
    assert nodes["resources"] == {"CPU": 0, "memory": memory, "toolcell": 32}
    assert found["idle_timeout_minutes"] == 1
    [container] = kuberay.pods(cluster)[1]["spec"]["containers"]
    assert container["resources"]["requests"] == {"cpu": "16", "memory": "18432Mi"}


@pytest.mark.parametrize(
    ("cluster", "words"),
    [
        ('directory = "env:A"\ntoken = "env:B"', "cluster.listen"),
        ('address = "auto"', "nodes that find each other in Redis"),
        (
            'listen = "0.0.0.0:1"\ndirectory = "env:A"\ntoken = "file:/b"',
            "file:/b is not on the machines",
        ),
        (None, "has no \\[cluster\\]"),
    ],
    ids=["listen", "ray", "file", "none"],
)
def test_a_daemonset_that_cannot_work_is_refused(
    config: Path, cluster: str | None, words: str
) -> None:
    config.write_text("" if cluster is None else f"[cluster]\n{cluster}\n")
    with pytest.raises(ConfigError, match=words):
        cluster_manifest(HostConfig.from_file(config), config.read_text(), IMAGE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "nodes on the machines of Ray"),
        (REDIS, "nodes on the machines of Ray"),
        ('[cluster]\naddress = "head:6379"', "nodes on the machines of Ray"),
        (RAY + CREDENTIAL, "nodes on Ray have no credentials"),
    ],
)
def test_a_ray_cluster_that_cannot_work_is_refused(
    config: Path, text: str, words: str
) -> None:
    config.write_text(text)
    with pytest.raises(ConfigError, match=words):
        kuberay_manifest(
            HostConfig.from_file(config),
            text,
            IMAGE,
            min_nodes=1,
            max_nodes=1,
            redis=None,
        )


def test_options_that_do_not_fit_are_refused(config: Path) -> None:
    config.write_text(RAY)
    refused = manifest(config, "--kind", "kuberay", "--min-nodes", "11", code=2)
    assert "11 nodes at least" in refused
    config.write_text(REDIS)
    assert "--kind kuberay" in manifest(config, "--max-nodes", "3", code=2)
