"""Options that several commands have."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from toolcell.core import ToolcellError

if TYPE_CHECKING:
    from ...config.host_config import HostConfig


def _complete(names: Callable[[HostConfig], Iterable[str]], start: str) -> list[str]:
    """Return completions for a shell; none if the configuration cannot be read."""
    from ...config.host_config import HostConfig

    with contextlib.suppress(ToolcellError, ImportError):
        config = HostConfig.from_file(DEFAULT_CONFIG)
        return sorted(name for name in names(config) if name.startswith(start))
    return []


def _agents(incomplete: str) -> list[str]:
    def names(config: HostConfig) -> Iterable[str]:
        return (policy.agent_id for policy in config.all_policies())

    return _complete(names, incomplete)


def _tools(incomplete: str) -> list[str]:
    def names(config: HostConfig) -> Iterable[str]:
        from toolcell.guard import ActionGuard

        from ...runtime.assembly import list_registry

        registry = list_registry(config, ActionGuard(config.all_policies()))
        return registry.list_tools()

    return _complete(names, incomplete)


ConfigPath = Annotated[
    Path,
    typer.Option(
        "--config",
        envvar="TOOLCELL_CONFIG",
        # The error of the reader says better why a file cannot be read.
        readable=False,
        help="The configuration of the host.",
    ),
]
DEFAULT_CONFIG = Path("toolcell.toml")
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ToolName = Annotated[str, typer.Argument(help="The tool.", autocompletion=_tools)]
Agent = Annotated[
    str,
    typer.Option("--agent", help="The agent that calls.", autocompletion=_agents),
]
RunId = Annotated[
    str | None, typer.Option("--run", help="The agent's run; for limits by run.")
]
FlowThread = Annotated[str, typer.Argument(metavar="THREAD", help="Its id.")]
ArgumentsOption = Annotated[
    str, typer.Option("--args", help="A JSON object; - reads standard input.")
]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="HOST:PORT that it may reach; *.HOST:PORT for all below."),
]
Timeout = Annotated[float, typer.Option(help="Seconds of real time.")]
CpuSeconds = Annotated[
    float | None, typer.Option(help="Seconds of CPU; else as long as it runs.")
]
OutputBytes = Annotated[
    int | None, typer.Option(help="Bytes kept of each stream; else 1 MiB.")
]
Packages = Annotated[
    list[str] | None,
    typer.Option(help="A package to import, such as 'numpy==2.1.*'."),
]
Isolation = Annotated[
    str,
    typer.Option(
        help="The weakest accepted: kernel, container, namespaces, confined or process."
    ),
]
BackendOption = Annotated[
    str, typer.Option(help="auto, docker, subprocess, process or an installed one.")
]
Memory = Annotated[int, typer.Option(help="MiB of memory.")]
Image = Annotated[str | None, typer.Option(help="The image of Docker cells.")]
Runtime = Annotated[str | None, typer.Option(help="runc, runsc, kata ...")]
