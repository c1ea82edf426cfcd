"""Makes the configuration of cells from options; errors name the option."""

from __future__ import annotations

from typing import Any

from toolcell.core import ConfigError
from toolcell.sandbox import SandboxConfig

_OPTIONS = {
    "backend": "--backend",
    "env": "--env",
    "image": "--image",
    "limits.cpu_seconds": "--cpu-seconds",
    "limits.memory_mib": "--memory",
    "limits.output_bytes": "--output-bytes",
    "limits.pids": "--pids",
    "limits.wall_seconds": "--timeout",
    "max_concurrency": "--concurrency",
    "minimum_isolation": "--isolation",
    "network.hosts": "--allow-host",
    "package_rules.allow": "--package",
    "packages": "--package",
    "package_rules.build": "--build",
    "programs_per_cell": "--programs-per-cell",
    "runtime": "--runtime",
}
_UNITS = {"--memory": " (MiB)", "--timeout": " (seconds)"}
_SHOULD = "Input should "


def config_of(options: dict[str, Any]) -> SandboxConfig:
    """Return the configuration of cells that options describe.

    Raises:
        ConfigError: An option has an invalid value; the message names it.
    """
    try:
        return SandboxConfig.model_validate(options)
    except ConfigError as error:
        problems = error.details.get("problems", [])
        message = "; ".join(_describe(x["field"], x["reason"]) for x in problems)
        raise ConfigError(
            message or error.message,
            hint=None,
            details=error.details,
        ) from None


def _describe(field: str, reason: str) -> str:
    known = [each for each in _OPTIONS if f"{field}.".startswith(f"{each}.")]
    if not known:
        return reason.replace("backend='docker'", "--backend docker")
    option = _OPTIONS[known[0]]
    if reason.startswith(_SHOULD):
        must = reason.removeprefix(_SHOULD).removeprefix("be ")
        return f"{option} must be {must}{_UNITS.get(option, '')}"
    return f"{option}: {reason}"
