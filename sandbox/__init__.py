"""Runs untrusted code in cells: containers, or processes behind namespaces."""

import typing

from toolcell.core.lazy_face import lazy_face as _lazy_face

if typing.TYPE_CHECKING:
    from .client.host_calls import HostCalls
    from .config.network import Network
    from .config.package_rules import PackageRules
    from .config.settings import CodePolicy, Limits, Mount, SandboxConfig
    from .interface import Sandbox
    from .manager import SandboxManager
    from .processes.ports import PortStream
    from .processes.process import Process
    from .programs.notebook import notebook_program
    from .results.events import Connected, Displayed, Event, Finished, Stderr, Stdout
    from .results.output import Output
    from .results.result import Artifact, ExecutionResult, Usage
    from .results.status import Status
    from .runs.batch import Job, JobResult, Programs
    from .sessions.interface import SandboxSession
    from .sessions.session import Session
    from .synchronous import open_session, run

__all__ = [
    "Artifact",
    "CodePolicy",
    "Connected",
    "Displayed",
    "Event",
    "ExecutionResult",
    "Finished",
    "HostCalls",
    "Job",
    "JobResult",
    "Limits",
    "Mount",
    "Network",
    "Output",
    "PackageRules",
    "PortStream",
    "Process",
    "Programs",
    "Sandbox",
    "SandboxConfig",
    "SandboxManager",
    "SandboxSession",
    "Session",
    "Status",
    "Stderr",
    "Stdout",
    "Usage",
    "notebook_program",
    "open_session",
    "run",
]

__getattr__ = _lazy_face(
    __name__,
    {
        ".client.host_calls": "HostCalls",
        ".config.package_rules": "PackageRules",
        ".config.network": "Network",
        ".config.settings": "CodePolicy Limits Mount SandboxConfig",
        ".interface": "Sandbox",
        ".manager": "SandboxManager",
        ".processes.ports": "PortStream",
        ".processes.process": "Process",
        ".programs.notebook": "notebook_program",
        ".results.events": "Connected Displayed Event Finished Stderr Stdout",
        ".results.output": "Output",
        ".results.result": "Artifact ExecutionResult Usage",
        ".results.status": "Status",
        ".runs.batch": "Job JobResult Programs",
        ".sessions.interface": "SandboxSession",
        ".sessions.session": "Session",
        ".synchronous": "open_session run",
    },
)
