"""Names for other rooms and extensions; they are no promise."""

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
    from .client.types import Freshness, Language, OnDisplay, OnOutput
    from .client.workdir import FileInfo
    from .config.package_rules import NpmRequirement, Requirement
    from .config.settings import Enforcer, IsolationLevel, is_weaker
    from .machine.own_folders import folder_prefix, sweep_folders
    from .network.gate import (
        NETWORK_ACTS,
        ActName,
        NetworkAct,
        RequestGate,
        ShownBody,
        Unplaced,
    )
    from .network.request_facts import facts_of_url
    from .network.run_clock import answer_for, pause_deadline
    from .network.types import OnConnection, Resolver
    from .packages.distributions import OnStep
    from .packages.layer_store import PackageLayer, list_packages, prune_packages
    from .processes.interface import FileChange, SandboxProcess, SandboxWatch
    from .processes.usage import CellUsage
    from .processes.watches import FileWatch
    from .programs.function_program import CallProgram, call_program, returned
    from .programs.program import RunRequest, check_request
    from .results.events import ArtifactMade
    from .results.missing_package import missing_package
    from .results.output import Preview
    from .results.process_end import MEMORY_KILL, signal_number
    from .results.result import (
        Connection,
        ExceptionInfo,
        Isolation,
        OpaqueValue,
        Truncated,
    )
    from .runs.batch import Batch, BatchResults, OnProgress
    from .scheduling.fair_queue import FairQueue
    from .scheduling.pool import PoolStats
    from .synchronous import SyncSession

__all__ = [
    "ActName",
    "ArtifactMade",
    "Batch",
    "BatchResults",
    "CallProgram",
    "CellUsage",
    "Cleaned",
    "Connection",
    "DoctorCheck",
    "DoctorReport",
    "EarlyLauncher",
    "Enforcer",
    "ExceptionInfo",
    "FairQueue",
    "FileChange",
    "FileInfo",
    "FileWatch",
    "Freshness",
    "ImageInfo",
    "Isolation",
    "IsolationLevel",
    "Language",
    "MEMORY_KILL",
    "NETWORK_ACTS",
    "NetworkAct",
    "NpmRequirement",
    "OnConnection",
    "OnDisplay",
    "OnOutput",
    "OnProgress",
    "OnStep",
    "OpaqueValue",
    "PackageLayer",
    "PoolStats",
    "Preview",
    "RequestGate",
    "Requirement",
    "Resolver",
    "RunRequest",
    "SandboxProcess",
    "SandboxWatch",
    "ShownBody",
    "SyncSession",
    "Truncated",
    "Unplaced",
    "answer_for",
    "build_image",
    "call_program",
    "check_request",
    "clean",
    "diagnose",
    "early_launcher",
    "facts_of_url",
    "folder_prefix",
    "image_names",
    "is_weaker",
    "list_images",
    "list_packages",
    "missing_package",
    "pause_deadline",
    "prune_images",
    "prune_packages",
    "pull_image",
    "returned",
    "save_artifact",
    "signal_number",
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
        ".client.artifact_file": "save_artifact",
        ".client.types": "Freshness Language OnDisplay OnOutput",
        ".client.workdir": "FileInfo",
        ".config.package_rules": "NpmRequirement Requirement",
        ".config.settings": "Enforcer IsolationLevel is_weaker",
        ".machine.own_folders": "folder_prefix sweep_folders",
        ".network.gate": (
            "ActName NETWORK_ACTS NetworkAct RequestGate ShownBody Unplaced"
        ),
        ".network.request_facts": "facts_of_url",
        ".network.run_clock": "answer_for pause_deadline",
        ".network.types": "OnConnection Resolver",
        ".packages.distributions": "OnStep",
        ".packages.layer_store": "PackageLayer list_packages prune_packages",
        ".processes.interface": "FileChange SandboxProcess SandboxWatch",
        ".processes.usage": "CellUsage",
        ".processes.watches": "FileWatch",
        ".programs.function_program": "CallProgram call_program returned",
        ".programs.program": "RunRequest check_request",
        ".results.events": "ArtifactMade",
        ".results.missing_package": "missing_package",
        ".results.output": "Preview",
        ".results.process_end": "MEMORY_KILL signal_number",
        ".results.result": """
            Connection ExceptionInfo Isolation OpaqueValue Truncated
        """,
        ".runs.batch": "Batch BatchResults OnProgress",
        ".scheduling.fair_queue": "FairQueue",
        ".scheduling.pool": "PoolStats",
        ".synchronous": "SyncSession",
    },
)
