"""Runs untrusted code in cells: containers, or processes behind namespaces."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .admin.cleanup import Cleaned, clean
    from .admin.doctor import DoctorCheck, DoctorReport, diagnose
    from .admin.images import (
        ImageInfo,
        build_image,
        image_names,
        list_images,
        prune_images,
        pull_image,
    )
    from .backends.launcher_start import EarlyLauncher, early_launcher
    from .client.artifact_file import save_artifact
    from .client.host_calls import HostCalls, answer_for, pause_deadline
    from .client.types import Freshness, Language, OnDisplay, OnOutput
    from .client.workdir import FileInfo
    from .config.package_rules import PackageRules
    from .config.settings import (
        CodePolicy,
        Enforcer,
        IsolationLevel,
        Limits,
        Mount,
        Network,
        SandboxConfig,
    )
    from .interface import Sandbox
    from .machine.own_folders import folder_prefix, sweep_folders
    from .manager import SandboxManager
    from .network.types import OnConnection, Resolver
    from .packages.distributions import OnStep
    from .packages.layer_store import PackageLayer, list_packages, prune_packages
    from .processes.interface import SandboxProcess, SandboxWatch
    from .processes.ports import PortStream
    from .processes.process import Process
    from .processes.usage import CellUsage
    from .processes.watches import FileChange, FileWatch
    from .programs.function_program import CallProgram, call_program, returned
    from .programs.notebook import notebook_program
    from .programs.program import RunRequest, check_request
    from .results.events import (
        ArtifactMade,
        Connected,
        Displayed,
        Event,
        Finished,
        Stderr,
        Stdout,
    )
    from .results.output import Output, Preview
    from .results.result import (
        Artifact,
        Connection,
        ExceptionInfo,
        ExecutionResult,
        Isolation,
        OpaqueValue,
        Truncated,
        Usage,
    )
    from .results.status import Status
    from .runs.batch import Batch, BatchResults, Job, JobResult, OnProgress, Programs
    from .scheduling.fair_queue import FairQueue
    from .scheduling.pool import PoolStats
    from .sessions.interface import SandboxSession
    from .sessions.session import Session
    from .synchronous import SyncSession, open_session, run

__all__ = [
    "Artifact",
    "ArtifactMade",
    "Batch",
    "BatchResults",
    "CallProgram",
    "CellUsage",
    "Cleaned",
    "CodePolicy",
    "Connected",
    "Connection",
    "Displayed",
    "DoctorCheck",
    "DoctorReport",
    "EarlyLauncher",
    "Enforcer",
    "Event",
    "ExceptionInfo",
    "ExecutionResult",
    "FairQueue",
    "FileChange",
    "FileInfo",
    "FileWatch",
    "Finished",
    "Freshness",
    "HostCalls",
    "ImageInfo",
    "Isolation",
    "IsolationLevel",
    "Job",
    "JobResult",
    "Language",
    "Limits",
    "Mount",
    "Network",
    "OnConnection",
    "OnDisplay",
    "OnOutput",
    "OnProgress",
    "OnStep",
    "OpaqueValue",
    "Output",
    "PackageLayer",
    "PackageRules",
    "PoolStats",
    "PortStream",
    "Preview",
    "Process",
    "Programs",
    "Resolver",
    "RunRequest",
    "Sandbox",
    "SandboxConfig",
    "SandboxManager",
    "SandboxProcess",
    "SandboxSession",
    "SandboxWatch",
    "Session",
    "Status",
    "Stderr",
    "Stdout",
    "SyncSession",
    "Truncated",
    "Usage",
    "answer_for",
    "build_image",
    "call_program",
    "check_request",
    "clean",
    "diagnose",
    "early_launcher",
    "folder_prefix",
    "image_names",
    "list_images",
    "list_packages",
    "notebook_program",
    "open_session",
    "pause_deadline",
    "prune_images",
    "prune_packages",
    "pull_image",
    "returned",
    "run",
    "save_artifact",
    "sweep_folders",
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".admin.cleanup": "Cleaned clean",
        ".admin.doctor": "DoctorCheck DoctorReport diagnose",
        ".admin.images": """
            ImageInfo build_image image_names list_images prune_images
            pull_image
        """,
        ".backends.launcher_start": "EarlyLauncher early_launcher",
        ".runs.batch": "Batch BatchResults Job JobResult OnProgress Programs",
        ".client.host_calls": "HostCalls answer_for pause_deadline",
        ".client.types": "Freshness Language OnDisplay OnOutput",
        ".client.artifact_file": "save_artifact",
        ".client.workdir": "FileInfo",
        ".config.package_rules": "PackageRules",
        ".config.settings": """
            CodePolicy Enforcer IsolationLevel Limits Mount Network SandboxConfig
        """,
        ".machine.own_folders": "folder_prefix sweep_folders",
        ".manager": "SandboxManager",
        ".network.types": "OnConnection Resolver",
        ".packages.distributions": "OnStep",
        ".packages.layer_store": "PackageLayer list_packages prune_packages",
        ".processes.ports": "PortStream",
        ".processes.process": "Process",
        ".processes.usage": "CellUsage",
        ".programs.notebook": "notebook_program",
        ".programs.program": "RunRequest check_request",
        ".processes.watches": "FileChange FileWatch",
        ".programs.function_program": "CallProgram call_program returned",
        ".sessions.interface": "SandboxSession",
        ".interface": "Sandbox",
        ".processes.interface": "SandboxProcess SandboxWatch",
        ".results.events": """
            ArtifactMade Connected Displayed Event Finished Stderr Stdout
        """,
        ".results.output": "Output Preview",
        ".results.result": """
            Artifact Connection ExceptionInfo ExecutionResult Isolation
            OpaqueValue Truncated Usage
        """,
        ".results.status": "Status",
        ".synchronous": "SyncSession open_session run",
        ".scheduling.fair_queue": "FairQueue",
        ".scheduling.pool": "PoolStats",
        ".sessions.session": "Session",
    },
)
