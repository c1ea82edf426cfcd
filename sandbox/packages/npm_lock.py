"""The lock that npm writes: the packages of a set, and their archives' hashes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from toolcell.core import PackageError

from ..config.package_rules import npm_origin

_NAME = r"(@[A-Za-z0-9._~-]+/)?[A-Za-z0-9_~-][A-Za-z0-9._~-]*"
_PLACE = re.compile(rf"node_modules/{_NAME}(/node_modules/{_NAME})*")
_COMMAND = re.compile(r"[A-Za-z0-9_~-][A-Za-z0-9._~-]*")
_FILE = re.compile(r"(\./)?[A-Za-z0-9_~@+-][A-Za-z0-9._~@+-]*(/[A-Za-z0-9._~@+-]+)*")
_SHA512 = re.compile(r"(^|\s)sha512-")


class _Entry(BaseModel):
    """One package in the lock."""

    model_config = ConfigDict(frozen=True)

    version: Annotated[str, Field(max_length=200)] = ""
    resolved: Annotated[str, Field(max_length=2000)] = ""
    integrity: Annotated[str, Field(max_length=2000)] = ""
    link: bool = False
    in_bundle: Annotated[bool, Field(alias="inBundle")] = False
    has_scripts: Annotated[bool, Field(alias="hasInstallScript")] = False
    commands: Annotated[dict[str, str], Field(alias="bin")] = {}


class PackageCommand(NamedTuple):
    """A command that a package brings."""

    name: str
    file: str
    """The path of its program, such as `node_modules/cowsay/cli.js`."""


_ENTRIES = TypeAdapter(dict[str, _Entry])


class NpmLock:
    """The packages of a set, each from the registry and with its SHA-512.

    Args:
        entries: What the lock says of each package, by its folder.
    """

    def __init__(self, entries: dict[str, _Entry]) -> None:
        self._entries = entries

    @classmethod
    def read(cls, data: bytes, registry: str) -> NpmLock:
        """Return a checked `package-lock.json`.

        Args:
            data: Its bytes.
            registry: The address that all of its archives come from.

        Raises:
            PackageError: It cannot be read, or a package is from elsewhere or has no
                SHA-512.
        """
        try:
            lock = TypeAdapter(dict[str, object]).validate_json(data)
            entries = _ENTRIES.validate_python(lock.get("packages"))
        except ValidationError:
            raise _unusable("it is not what npm writes") from None
        # The folder of the set itself, which is no package.
        entries.pop("", None)
        for place, entry in entries.items():
            if why := _why_not(place, entry, registry):
                raise _unusable(f"{place[:200]} {why}")
        return cls(entries)

    def names(self, folder: Path) -> list[str]:
        """Return names and versions of the packages in a folder, `a@1.0.0`."""
        return sorted(
            f"{place.rpartition('node_modules/')[2]}@{entry.version}"
            for place, entry in self._entries.items()
            if (folder / place).is_dir()
        )

    def commands(
        self, folder: Path, packages: Iterable[str]
    ) -> Iterator[PackageCommand]:
        """Yield the commands of packages, and not those of their dependencies.

        Args:
            folder: Has the files of the set.
            packages: The packages' names.
        """
        for place in (f"node_modules/{package}" for package in packages):
            entry = self._entries.get(place, _Entry())
            for name, file in entry.commands.items():
                plain = _COMMAND.fullmatch(name) and _FILE.fullmatch(file)
                if not plain or ".." in file.split("/"):
                    continue
                path = f"{place}/{file.removeprefix('./')}"
                if (folder / path).is_file():
                    yield PackageCommand(name, path)

    def require_no_builds(self, folder: Path) -> None:
        """Refuse packages that only their own script makes complete.

        Raises:
            PackageError: One is compiled when it is installed, and has no binary.
        """
        for place, entry in self._entries.items():
            source = folder / place
            if not entry.has_scripts or not (source / "binding.gyp").is_file():
                continue
            if next(source.rglob("*.node"), None) is None:
                name = place.rpartition("node_modules/")[2]
                raise PackageError(
                    f"the package {name} of npm has to be compiled by its own script, "
                    "and no script of a package is run",
                    hint="use a package that brings its binary, or an image that has "
                    "this one",
                    details={"reason": "needs_script", "packages": [name]},
                )


def _why_not(place: str, entry: _Entry, registry: str) -> str:
    """Return why a package is refused; empty if it is not."""
    if entry.link or not _PLACE.fullmatch(place):
        return "is no folder of the set"
    if entry.in_bundle and not entry.resolved:
        # Its files are in the archive of the package that it is a part of.
        return ""
    if not _is_from(entry.resolved, registry):
        return f"is not from the registry, but from {entry.resolved[:200] or 'nowhere'}"
    return "" if _SHA512.search(entry.integrity) else "has no SHA-512"


def _is_from(address: str, registry: str) -> bool:
    try:
        return npm_origin(address) == npm_origin(registry)
    except ValueError:
        return False


def _unusable(why: str) -> PackageError:
    return PackageError(
        f"packages of npm cannot be installed: in their lock {why}",
        hint="use versions whose dependencies are all in the registry",
        details={"reason": "not_from_registry"},
    )
