"""Definitions of MCP tools that a person approved, in a file.

An approval is for one definition. A server that changes a definition later offers
another tool, and that one waits for approval.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolcell.core import ConfigError

from .definition import MCPDefinition

MAX_BYTES = 67_108_864
"""Size of a file of pins. A larger one is refused."""


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sha256: str
    definition: MCPDefinition


class _PinFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Annotated[Literal[1], Field()] = 1
    servers: dict[str, list[_Pin]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MCPChange:
    """A tool before and after a change; None: there was, or is, no such tool."""

    name: str
    before: MCPDefinition | None
    after: MCPDefinition | None


class MCPPins:
    """Approved definitions of tools, by the name of their server; immutable.

    Args:
        servers: Definitions by server.
    """

    def __init__(
        self, servers: Mapping[str, Iterable[MCPDefinition]] | None = None
    ) -> None:
        self._servers = {
            server: {each.name: each for each in definitions}
            for server, definitions in (servers or {}).items()
        }

    def of(self, server: str) -> dict[str, MCPDefinition]:
        """Return the approved definitions of a server, by name; none if unknown."""
        return dict(self._servers.get(server, {}))

    def approve(self, server: str, definitions: Iterable[MCPDefinition]) -> MCPPins:
        """Return pins in which the server has these definitions and no others."""
        others = {name: each.values() for name, each in self._servers.items()}
        return MCPPins({**others, server: list(definitions)})

    def changes(
        self, server: str, definitions: Iterable[MCPDefinition]
    ) -> list[MCPChange]:
        """Return the differences from the approved definitions of a server."""
        before = self.of(server)
        after = {each.name: each for each in definitions}
        return [
            MCPChange(name, before.get(name), after.get(name))
            for name in sorted(before.keys() | after.keys())
            if _digest(before.get(name)) != _digest(after.get(name))
        ]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> MCPPins:
        """Read a file of pins; without the file nothing is approved.

        Raises:
            ConfigError: It cannot be read, or a definition is not the hashed one.
        """
        try:
            with open(path, "rb") as file:
                data = file.read(MAX_BYTES + 1)
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise ConfigError(
                f"the pins {path} cannot be read: {error.strerror}",
                hint="name a file that this user may read",
            ) from None
        try:
            read = _PinFile.model_validate_json(data[:MAX_BYTES])
            for server, pins in read.servers.items():
                for pin in pins:
                    if pin.definition.digest != pin.sha256:
                        raise ConfigError(
                            f"the pin of {pin.definition.name} of {server} in {path}"
                            " is not what was approved",
                            hint="approve it with `toolcell tools pin`",
                        )
        except (ValidationError, ValueError):
            raise ConfigError(
                f"{path} is not a file of pins",
                hint="move it away; `toolcell tools pin` writes a new one",
            ) from None
        servers = {
            server: [pin.definition for pin in pins]
            for server, pins in read.servers.items()
        }
        return cls(servers)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, in one step and for this user alone.

        Raises:
            ConfigError: It cannot be written.
        """
        text = json.dumps(self._to_json(), indent=2, ensure_ascii=True) + "\n"
        target = Path(path)
        try:
            descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=target.name)
            try:
                with os.fdopen(descriptor, "w") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(name, target)
            except BaseException:
                os.unlink(name)
                raise
        except OSError as error:
            raise ConfigError(
                f"the pins {path} cannot be written: {error.strerror}",
                hint="name a file in a folder that this user may write",
            ) from None

    def _to_json(self) -> dict[str, Any]:
        servers = {
            server: [
                {"sha256": pins[name].digest, "definition": pins[name].to_json()}
                for name in sorted(pins)
            ]
            for server, pins in sorted(self._servers.items())
        }
        return {"format": 1, "servers": servers}


def _digest(definition: MCPDefinition | None) -> str | None:
    return None if definition is None else definition.digest
