"""Runs untrusted code in cells: containers, or processes behind namespaces."""

from .call_server import HostCalls, clock_stopped
from .config import CodePolicy, Limits, Mount, Network, PackageRules, SandboxConfig
from .doctor import Check, Report, examine
from .events import ArtifactMade, Connected, Event, Finished, Stderr, Stdout
from .files import FileInfo, save_artifact
from .function_source import CallProgram, call_program
from .images import (
    ImageInfo,
    build_image,
    image_names,
    list_images,
    prune_images,
    pull_image,
)
from .janitor import Cleaned, clean
from .layers import PackageLayer, list_packages, prune_packages
from .manager import SandboxManager
from .pool import PoolStats
from .result import (
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
from .session import Session

__all__ = [
    "Artifact",
    "ArtifactMade",
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
