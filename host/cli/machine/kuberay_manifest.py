"""Objects of KubeRay, for a Ray cluster on Kubernetes whose machines are nodes."""

from __future__ import annotations

import json
from typing import Any

from toolcell.core import ConfigError, InvalidInputError
from toolcell.sandbox import SandboxConfig

from ...config.host_config import HostConfig
from ...runtime.cluster import refuse_credentials_on_ray

_NAME = "toolcell"
_FOLDER = "/etc/toolcell"
_FILE = "toolcell.toml"
_RECONNECT_SECONDS = 86_400
_HEAD_RESOURCES = {"cpu": "1", "memory": "4Gi"}
_REST_MIB = 2048
"""Memory of a machine beside its cells: for Ray, and for the node itself."""

_START = f"""\
for _ in $(seq 60); do
  toolcell cluster up --config {_FOLDER}/{_FILE} && exit 0
  sleep 2
done
exit 1
"""


def kuberay_manifest(
    config: HostConfig,
    text: str,
    image: str,
    *,
    min_nodes: int,
    max_nodes: int,
    redis: str | None,
) -> list[dict[str, Any]]:
    """Return a ConfigMap with the configuration, and a RayCluster of KubeRay.

    Its workers are nodes, as many as Ray's autoscaler finds are needed; its head has no
    cells, and starts the nodes once Ray is up. The secret `toolcell` has Ray's token
    (`token`), and is yours to make: no manifest holds it.

    Args:
        config: The configuration.
        text: The text of its file.
        image: An image with Ray, and toolcell with its extra `cluster-ray`.
        min_nodes: Nodes that are there at least.
        max_nodes: Nodes that are there at most.
        redis: `HOST:PORT` of a Redis server in which the head keeps what it knows, so
            that Ray outlives its head; `redis-password` of the secret opens it. None:
            a new head begins with nothing.

    Raises:
        ConfigError: The configuration has no `[cluster] address = "auto"`, or it has
            credentials.
        InvalidInputError: `min_nodes` is more than `max_nodes`.
    """
    if min_nodes > max_nodes:
        raise InvalidInputError(
            f"{min_nodes} nodes at least are more than {max_nodes} at most",
            hint="raise --max-nodes",
        )
    if config.cluster is None or config.cluster.address != "auto":
        raise ConfigError(
            "a manifest for KubeRay is for nodes on the machines of Ray",
            hint='set address = "auto" in [cluster]; see docs/cluster.md',
        )
    refuse_credentials_on_ray(config.sandbox)
    spec: dict[str, Any] = {
        "enableInTreeAutoscaling": True,
        "autoscalerOptions": {"idleTimeoutSeconds": 60, "env": _environ()},
        "headGroupSpec": {
            "rayStartParams": {"num-cpus": "0"},
            "template": _head(image),
        },
        "workerGroupSpecs": [
            {
                "groupName": "nodes",
                "replicas": min_nodes,
                "minReplicas": min_nodes,
                "maxReplicas": max_nodes,
                **_worker(config.sandbox, image),
            }
        ],
    }
    if redis is not None:
        password = {"secretKeyRef": {"name": _NAME, "key": "redis-password"}}
        spec["gcsFaultToleranceOptions"] = {
            "redisAddress": redis,
            "redisPassword": {"valueFrom": password},
        }
    about = {"metadata": {"name": _NAME}}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", **about, "data": {_FILE: text}},
        {"apiVersion": "ray.io/v1", "kind": "RayCluster", **about, "spec": spec},
    ]


def _environ() -> list[dict[str, Any]]:
    """Return the variables that each process of Ray needs, see docs/cluster.md."""
    plain = {
        "RAY_AUTH_MODE": "token",
        "RAY_worker_niceness": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": str(_RECONNECT_SECONDS),
    }
    token = {"secretKeyRef": {"name": _NAME, "key": "token"}}
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
    ]


def _head(image: str) -> dict[str, Any]:
    container = {
        "name": "head",
        "image": image,
        "env": _environ(),
        "resources": {"requests": _HEAD_RESOURCES, "limits": _HEAD_RESOURCES},
        # Only a process on a machine of Ray can start nodes.
        "lifecycle": {"postStart": {"exec": {"command": ["sh", "-c", _START]}}},
        "volumeMounts": [{"name": "config", "mountPath": _FOLDER, "readOnly": True}],
    }
    config = {"name": "config", "configMap": {"name": _NAME}}
    return {"spec": {**_pod(container), "volumes": [config]}}


def _worker(config: SandboxConfig, image: str) -> dict[str, Any]:
    slots, limits = config.max_concurrency, config.limits
    memory = f"{slots * limits.memory_mib + _REST_MIB}Mi"
    cpus = f"{max(1, round(slots * limits.cpus))}"
    container = {
        "name": "node",
        "image": image,
        "env": _environ(),
        "resources": {
            "requests": {"cpu": cpus, "memory": memory},
            "limits": {"memory": memory},
        },
        # Cells are made of namespaces and cgroups.
        "securityContext": {"privileged": True},
    }
    return {
        "rayStartParams": {
            "num-cpus": "0",
            # KubeRay writes it into a line of a shell.
            "resources": json.dumps(json.dumps({"toolcell": slots})),
        },
        # Cells have their own walls; the node needs none of the API of Kubernetes.
        "template": {
            "spec": {"automountServiceAccountToken": False, **_pod(container)}
        },
    }


def _pod(container: dict[str, Any]) -> dict[str, Any]:
    # To Ray's autoscaler a pod that starts again would be another machine.
    return {"restartPolicy": "Never", "containers": [container]}
