"""Packages as their authors pack them and as cells build them: sources and wheels."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolcell.core import PackageError

from ..client.types import CellTraits
from ..config.settings import SandboxConfig
from ..results.result import ExecutionResult

OnStep = Callable[[str], None]
"""Takes each line that the installer of packages prints."""

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_BUILT = re.compile(r"[a-z0-9-]+ @ (file://\S+\.whl)")


class SourceDistribution(BaseModel):
    """The source archive of one version of a package."""

    model_config = ConfigDict(frozen=True)

    name: Annotated[str, Field(pattern=r"^[a-z0-9-]+$")]
    version: str
    url: Annotated[str, Field(pattern=r"^(https?|file)://")]
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @classmethod
    def read(cls, package: dict[str, Any]) -> SourceDistribution:
        """Return the source archive of a package in a `pylock.toml`.

        Raises:
            PackageError: It has no source, or no SHA-256.
        """
        found = package.get("sdist", {})
        try:
            return cls(
                name=package["name"],
                version=package["version"],
                url=found["url"],
                sha256=found["hashes"]["sha256"],
            )
        except (KeyError, ValidationError):
            raise PackageError(
                f"the index has no source of {package['name']} with its SHA-256",
                hint="ask for a version that has one, or a wheel",
                details={"reason": "no_source"},
            ) from None


class BuiltWheel(NamedTuple):
    """A wheel that was built in a cell, and its dependencies.

    uv gets them from here and does not read them in the wheel, which is untrusted. They
    are checked: they name packages of the index, and no addresses.
    """

    wheel: Path
    needs: tuple[str, ...]
    extras: tuple[str, ...]


class BuildSession(Protocol):
    """The session in which one package is built; a `Session` is one."""

    async def write_file(self, path: str, data: bytes | str) -> None:
        """Write a file of the work dir."""

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        """Return the bytes of a file of the work dir."""

    async def install(
        self, packages: Sequence[str], *, on_step: OnStep | None = None
    ) -> None:
        """Let the steps of the build that follow import packages."""

    async def run(
        self, code: str, *, fresh: bool, inputs: Mapping[str, Any] | None
    ) -> ExecutionResult:
        """Run one step of the build."""


class Builder(Protocol):
    """A sandbox whose cells install packages; a `SandboxManager` is one."""

    @property
    def traits(self) -> CellTraits:
        """The promises of its backend."""

    def session(self) -> AbstractAsyncContextManager[BuildSession]:
        """Open a session in a cell of it."""


OpenBuilder = Callable[[SandboxConfig], AbstractAsyncContextManager[Builder]]
"""Opens a sandbox with a configuration."""


def canonical(requirement: str) -> str:
    """Return the normalized name of the package in a requirement."""
    found = _NAME.match(requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else requirement


def built_file(line: str) -> Path | None:
    """Return the wheel that a line of a lock names, if it was built here."""
    found = _BUILT.match(line)
    return Path(unquote(urlsplit(found[1]).path)) if found else None
