"""Definitions of tools of other programs that a person approved, in a file.

An approval is for one definition. A server that changes a definition later offers
another tool, and that one waits for approval.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Generic, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError

from toolcell.core import ConfigError
from toolcell.core.storage.whole_files import written_whole

from .definition import D, ExternalDefinition

MAX_BYTES = 67_108_864
"""Size of a file of pins. A larger one is refused."""


class _Pin(BaseModel):
    model_config = ConfigDict(extra="forbid")

    sha256: str
    definition: dict[str, JsonValue]


class _PinFile(BaseModel):
    model_config = ConfigDict(extra="forbid")

    format: Annotated[Literal[1], Field()] = 1
    servers: dict[str, list[_Pin]] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PinChange:
    """A tool before and after a change; None: there was, or is, no such tool."""

    name: str
    before: ExternalDefinition | None
    after: ExternalDefinition | None


class Pins(Generic[D]):
    """Approved definitions of tools, by the name of their server; immutable.

    Args:
        servers: Definitions by server.
    """

    kind: ClassVar[type[ExternalDefinition]]
    """The class of the definitions."""

    def __init__(self, servers: Mapping[str, Iterable[D]] | None = None) -> None:
        self._servers = {
            server: {definition.name: definition for definition in definitions}
            for server, definitions in (servers or {}).items()
        }

    def of(self, server: str) -> dict[str, D]:
        """Return the approved definitions of a server, by name; none if unknown."""
        return dict(self._servers.get(server, {}))

    def approve(self, server: str, definitions: Iterable[D]) -> Self:
        """Return pins in which the server has these definitions and no others."""
        others = {name: pins.values() for name, pins in self._servers.items()}
        return type(self)({**others, server: list(definitions)})

    def changes(self, server: str, definitions: Iterable[D]) -> list[PinChange]:
        """Return the differences from the approved definitions of a server."""
        before = self.of(server)
        after = {definition.name: definition for definition in definitions}
        return [
            PinChange(name, before.get(name), after.get(name))
            for name in sorted(before.keys() | after.keys())
            if _digest(before.get(name)) != _digest(after.get(name))
        ]

    @classmethod
    def read(cls, definition: Mapping[str, JsonValue]) -> ExternalDefinition:
        """Return a definition of the file. Raises ValueError."""
        return cls.kind.model_validate(definition)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
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
            servers = {
                server: [cls._approved(pin, server, path) for pin in pins]
                for server, pins in read.servers.items()
            }
        except (ValidationError, ValueError):
            raise ConfigError(
                f"{path} is not a file of pins",
                hint="move it away; `toolcell tools pin` writes a new one",
            ) from None
        return cls(servers)

    @classmethod
    def _approved(cls, pin: _Pin, server: str, path: str | os.PathLike[str]) -> Any:
        definition = cls.read(pin.definition)
        if definition.digest != pin.sha256:
            raise ConfigError(
                f"the pin of {definition.name} of {server} in {path}"
                " is not what was approved",
                hint="approve it with `toolcell tools pin`",
            )
        return definition

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the file, in one step and for this user alone.

        Raises:
            ConfigError: It cannot be written.
        """
        text = json.dumps(self._to_json(), indent=2, ensure_ascii=True) + "\n"
        try:
            with written_whole(Path(path)) as file:
                file.write(text.encode())
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


def _digest(definition: ExternalDefinition | None) -> str | None:
    return None if definition is None else definition.digest
