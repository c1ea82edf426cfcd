"""The protocol that both ends of a link agree on."""

from __future__ import annotations

from toolcell.sandbox import SandboxConfig
from toolcell.sandbox.spi import RunRequest

PROTOCOL = 7
"""The version of the messages; both ends must have the same."""

LOST_SECONDS = 10.0
"""Default seconds without a sign of life until the other end is given up."""

FOLLOWED = frozenset(("calls", "gate", "on_output", "on_display", "on_connection"))
"""Fields of a run whose caller follows it while it goes on; without them it has an
answer, and nothing before."""

_NO_JSON = frozenset(("limits", "network", "secrets", "stdin", "files"))
_HERE = frozenset(("streamed", "batch"))
OPTIONS = frozenset(RunRequest._fields) - FOLLOWED - _NO_JSON - _HERE
"""Options of a run that a driver may send, beside fields that are read one by one."""

_TOLD = (
    "minimum_isolation",
    "limits",
    "network",
    "session_idle_seconds",
    "session_lifetime_seconds",
    "max_queue",
    "work_dir",
)


def rules_of(config: SandboxConfig) -> SandboxConfig:
    """Return the part of a node's configuration that drivers get.

    Its variables, mounts, paths and packages stay with the node.
    """
    return SandboxConfig(**{name: getattr(config, name) for name in _TOLD})
