"""Runs untrusted code in cells: containers, or processes behind namespaces."""

from .admin.cleanup import Cleaned, clean
from .admin.doctor import Check, Report, examine
from .admin.images import (
    ImageInfo,
    build_image,
    image_names,
    list_images,
    prune_images,
    pull_image,
)
from .batch import BatchResults, Job, JobResult
from .client.host_calls import HostCalls, clock_stopped
from .client.workdir import FileInfo, save_artifact
from .config.settings import (
    CodePolicy,
    Limits,
    Mount,
    Network,
    PackageRules,
    SandboxConfig,
)
from .manager import SandboxManager
from .packages.layer_store import PackageLayer, list_packages, prune_packages
from .programs.function_program import CallProgram, call_program
from .results.events import ArtifactMade, Connected, Event, Finished, Stderr, Stdout
from .results.result import (
    Artifact,
    Connection,
    Described,
    ExceptionInfo,
    ExecutionResult,
    Isolation,
    Status,
    Truncated,
    Usage,
)
from .run import run
from .scheduling.pool import PoolStats
from .session import Session

__all__ = [
    "Artifact",
    "ArtifactMade",
    "BatchResults",
    "CallProgram",
    "Check",
    "Cleaned",
    "CodePolicy",
    "Connected",
    "Connection",
    "Described",
    "Event",
    "ExceptionInfo",
    "ExecutionResult",
    "FileInfo",
    "Finished",
    "HostCalls",
    "ImageInfo",
    "Isolation",
    "Job",
    "JobResult",
    "Limits",
    "Mount",
    "Network",
    "PackageLayer",
    "PackageRules",
    "PoolStats",
    "Report",
    "SandboxConfig",
    "SandboxManager",
    "Session",
    "Status",
    "Stderr",
    "Stdout",
    "Truncated",
    "Usage",
    "build_image",
    "call_program",
    "clean",
    "clock_stopped",
    "examine",
    "image_names",
    "list_images",
    "list_packages",
    "prune_images",
    "prune_packages",
    "pull_image",
    "run",
    "save_artifact",
]
