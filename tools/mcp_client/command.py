"""An MCP server that is a program, as it is described to `MCPToolset`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from toolcell.core import ConfigError

if TYPE_CHECKING:
    from toolcell.sandbox import SandboxConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class MCPCommand:
    """An MCP server that is started as a program; no shell is involved.

    It runs in its own cell, without network, mounts and packages, unless `cell`
    names them.

    Raises:
        ConfigError: A text cannot be given to a program, or an option belongs to the
            other place.
    """

    command: str
    """The program: a path, or a name that is looked for in PATH."""

    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Its environment: in a cell beside what every program finds there, on the host
    beside LANG and a PATH of the system's folders."""

    cell: SandboxConfig | None = None
    """The cell: its backend, network, mounts, packages and limits. Of limits that it
    does not name, `open_files` is 1,024, `connections` 100,000 and `network_bytes` 1
    TiB; those of a single run, such as `wall_seconds`, do not count. None: the
    defaults."""

    where: Literal["cell", "host"] = "cell"
    """`host` runs it unconfined, as the user of this process."""

    folder: Path | None = None
    """The folder it runs in, on the host alone; None: that of this process. In a cell
    it is the work dir."""

    def __post_init__(self) -> None:
        texts = (self.command, *self.args, *self.env, *self.env.values())
        odd = any("\0" in text for text in texts)
        if odd or not self.command or any("=" in name for name in self.env):
            raise ConfigError(
                "the command of an MCP server cannot be started",
                hint="give a command; no NUL anywhere, no `=` in names of variables",
            )
        if self.where not in ("cell", "host"):
            raise ConfigError(
                "an MCP server runs in a `cell` or on the `host`",
                hint='leave `where` out, or write where="host"',
            )
        if self.folder is not None and self.where == "cell":
            raise ConfigError(
                "`folder` belongs to an MCP server on the host",
                hint="show the folder in `mounts` of its cell",
            )
        if self.cell is not None and self.where == "host":
            raise ConfigError(
                "an MCP server on the host has no cell",
                hint='leave out `cell`, or where="host"',
            )
        if self.cell is not None and self.cell.network.mode == "guarded":
            raise ConfigError(
                "the network of an MCP server cannot be guarded",
                hint="use Network.allow([...])",
            )
