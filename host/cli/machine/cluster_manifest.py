"""Objects of Kubernetes that make its machines nodes."""

from __future__ import annotations

from typing import Any

from toolcell.core import ConfigError

from ...config.host_config import HostConfig

_LABELS = {"app.kubernetes.io/name": "toolcell-node"}
_FOLDER = "/etc/toolcell"


def cluster_manifest(config: HostConfig, text: str, image: str) -> list[dict[str, Any]]:
    """Return a ConfigMap with the configuration, and a DaemonSet of nodes.

    Kubernetes then starts one node on each machine, and starts it anew when it ends.
    The secret `toolcell` has the token, the URL of the directory, keys of drivers and
    values of credentials, and is yours to make: no manifest holds it.

    Args:
        config: The configuration.
        text: The text of its file.
        image: An image with toolcell.

    Raises:
        ConfigError: The configuration has no `[cluster]`, or cannot be used there.
    """
    settings = config.cluster
    if settings is None:
        raise ConfigError(
            "the configuration has no [cluster]", hint="see docs/cluster.md"
        )
    if settings.directory is None or settings.token is None:
        raise ConfigError(
            "a manifest is for nodes that find each other in Redis",
            hint="set cluster.directory; with cluster.address use --kind kuberay",
        )
    port = int(settings.listen.rpartition(":")[2])
    if not port or settings.listen.startswith("127."):
        raise ConfigError(
            "cluster.listen has to be an address that other machines reach",
            hint='set listen = "0.0.0.0:8470"',
        )
    variables = []
    secrets = [settings.directory, settings.token, *settings.drivers.values()]
    secrets += [credential.value for credential in config.sandbox.credentials]
    for reference in dict.fromkeys(secrets):
        kind, _, name = reference.partition(":")
        if kind != "env":
            raise ConfigError(
                f"{reference} is not on the machines of Kubernetes",
                hint="name variables: the secret `toolcell` sets them",
            )
        key = {"name": "toolcell", "key": name}
        variables.append({"name": name, "valueFrom": {"secretKeyRef": key}})
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "toolcell-node", "labels": _LABELS},
            "data": {"toolcell.toml": text},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": "toolcell-node", "labels": _LABELS},
            "spec": {
                "selector": {"matchLabels": _LABELS},
                "template": {
                    "metadata": {"labels": _LABELS},
                    "spec": _pod(image, port, variables, settings.drain_seconds),
                },
            },
        },
    ]


def _pod(
    image: str, port: int, variables: list[dict[str, Any]], drain_seconds: float
) -> dict[str, Any]:
    fields = {
        "TOOLCELL__CLUSTER__NODE": "spec.nodeName",
        "TOOLCELL__CLUSTER__PUBLIC_HOST": "status.podIP",
    }
    variables = variables + [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in fields.items()
    ]
    return {
        # Cells have their own walls; the node needs none of the API of Kubernetes.
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": round(drain_seconds) + 30,
        "containers": [
            {
                "name": "node",
                "image": image,
                "command": ["toolcell", "cluster", "up"],
                "args": ["--config", f"{_FOLDER}/toolcell.toml"],
                "env": variables,
                "ports": [{"name": "link", "containerPort": port}],
                # Cells are made of namespaces and cgroups.
                "securityContext": {"privileged": True},
                "volumeMounts": [
                    {"name": "config", "mountPath": _FOLDER, "readOnly": True}
                ],
            }
        ],
        "volumes": [{"name": "config", "configMap": {"name": "toolcell-node"}}],
    }
