"""The fields of KubeRay's RayCluster that a manifest of ours may have.

They are from KubeRay's API reference (docs/reference/api.md, `ray.io/v1`): no package
that can be installed has its schema. Pods are those of Kubernetes, which has one.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, TypeAdapter


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class PodTemplateSpec(_Strict):
    metadata: dict[str, Any] | None = None
    spec: dict[str, Any]


class AutoscalerOptions(_Strict):
    resources: dict[str, Any] | None = None
    image: str | None = None
    imagePullPolicy: str | None = None
    securityContext: dict[str, Any] | None = None
    idleTimeoutSeconds: int | None = None
    upscalingMode: Literal["Default", "Aggressive", "Conservative"] | None = None
    version: Literal["v1", "v2"] | None = None
    env: list[dict[str, Any]] | None = None
    envFrom: list[dict[str, Any]] | None = None
    volumeMounts: list[dict[str, Any]] | None = None


class RedisCredential(_Strict):
    valueFrom: dict[str, Any] | None = None
    value: str | None = None


class GcsFaultToleranceOptions(_Strict):
    redisUsername: RedisCredential | None = None
    redisPassword: RedisCredential | None = None
    externalStorageNamespace: str | None = None
    redisAddress: str


class HeadGroupSpec(_Strict):
    template: PodTemplateSpec
    headService: dict[str, Any] | None = None
    enableIngress: bool | None = None
    rayStartParams: dict[str, str]
    serviceType: str | None = None


class WorkerGroupSpec(_Strict):
    suspend: bool | None = None
    groupName: str
    replicas: int | None = None
    minReplicas: int
    maxReplicas: int
    idleTimeoutSeconds: int | None = None
    rayStartParams: dict[str, str]
    template: PodTemplateSpec
    scaleStrategy: dict[str, Any] | None = None
    numOfHosts: int | None = None


class RayClusterSpec(_Strict):
    suspend: bool | None = None
    managedBy: str | None = None
    autoscalerOptions: AutoscalerOptions | None = None
    headServiceAnnotations: dict[str, str] | None = None
    enableInTreeAutoscaling: bool | None = None
    gcsFaultToleranceOptions: GcsFaultToleranceOptions | None = None
    headGroupSpec: HeadGroupSpec
    rayVersion: str | None = None
    workerGroupSpecs: list[WorkerGroupSpec]


class RayCluster(_Strict):
    apiVersion: Literal["ray.io/v1"]
    kind: Literal["RayCluster"]
    metadata: dict[str, Any]
    spec: RayClusterSpec


def pods(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the pods of a RayCluster, as Kubernetes has them; check all the rest.

    Raises:
        ValidationError: It has a field that KubeRay has not, or lacks one.
    """
    read = TypeAdapter(RayCluster).validate_python(manifest)
    workers = [group.template for group in read.spec.workerGroupSpecs]
    return [
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "pod"},
            "spec": template.spec,
        }
        for template in (read.spec.headGroupSpec.template, *workers)
    ]
