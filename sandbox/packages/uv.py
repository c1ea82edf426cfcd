"""Runs uv, which finds exact versions with their hashes, and unpacks wheels.

It executes nothing of a package: it takes wheels only, and compiles no byte code.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path

import anyio
import anyio.abc
from anyio.streams.text import TextReceiveStream

from toolcell.core import PackageError, SandboxUnavailableError
from toolcell.core.text.install_hint import install_hint

from .distributions import BuiltWheel, OnStep, SourceDistribution
from .index import PackageIndex
from .layer_files import too_large
from .target_interpreter import Interpreter

_LOOK_SECONDS = 0.1
# For metadata of the index and the cache of wheels.
_SLACK_BYTES = 256 * 1024 * 1024
_MAX_STDERR_CHARACTERS = 64 * 1024
_MAX_MESSAGE_CHARACTERS = 1500
# They would lead uv to another interpreter or project.
_DROPPED = ("VIRTUAL_ENV", "CONDA_PREFIX", "PYTHONPATH", "PYTHONHOME", "UV_PROJECT")
_CAUSES = (
    # uv takes an index that refuses it for one that has no such package.
    ("refused", re.compile(r"401 Unauthorized|403 Forbidden")),
    ("not_found", re.compile(r"was not found in the|there (is|are) no versions? of")),
    ("no_wheel", re.compile(r"no usable wheels|no wheels with a matching")),
    ("unreachable", re.compile(r"Failed to fetch|error sending request|client error")),
    ("conflict", re.compile(r"unsatisfiable|No solution found")),
)
# Lines that the raised error repeats.
_OF_FAILURES = ("error: ", "cause: ", "hint: ", "And because ")
_HINTS = {
    "refused": "name a password that the index takes in package_rules.index_password, "
    "and its user in index_url; or give uv's own settings credentials",
    "not_found": "check the spelling and the version",
    "no_wheel": "packages are installed from wheels only; name those that are to be "
    "built from their source, in a cell, in package_rules.build of SandboxConfig",
    "unreachable": "packages are fetched from this machine, never from a cell; set "
    "package_rules.index_url, or uv's own settings, to an index that answers",
    "conflict": "ask for versions that go together; `package_rules.allow` may bound "
    "them, too",
}


class Uv:
    """The uv program with its options.

    Args:
        cache: The folder where it keeps wheels.
        index: The index to ask.
        seconds: The longest time of one call. When it is reached uv is stopped.
        max_bytes: The largest size of a set on disk.
        on_step: Called with each line that it prints.

    Raises:
        SandboxUnavailableError: uv is not installed.
    """

    def __init__(
        self,
        cache: Path,
        index: PackageIndex,
        seconds: float,
        max_bytes: int,
        on_step: OnStep | None = None,
    ) -> None:
        self._program = find_uv()
        self._seconds = seconds
        self._max_bytes = max_bytes
        self._on_step = on_step
        self._options = ["--cache-dir", str(cache), "--no-python-downloads"]
        self._options += ["--no-progress", "--color", "never"]
        self._index = index

    async def resolve(
        self,
        requirements: Iterable[str],
        constraints: Sequence[str],
        target: Interpreter,
        folder: Path,
        built: Mapping[str, BuiltWheel],
    ) -> str:
        """Return exact versions, each with the hashes that its wheels may have.

        Args:
            requirements: The requested packages.
            constraints: Bounds on all versions, also on those of dependencies.
            target: The interpreter that the versions are for.
            folder: An empty folder to work in.
            built: Wheels among the constraints that cells made, by name.

        Raises:
            PackageError: There are no such versions, or the index does not answer.
        """
        lock = folder / "lock.txt"
        _write_dependencies(folder, built)
        options = _compile_options(requirements, constraints, folder)
        options += ["--generate-hashes", "--output-file", str(lock)]
        await self._call("compile", target, folder, options)
        return lock.read_text()

    async def sources(
        self,
        requirements: Iterable[str],
        constraints: Sequence[str],
        target: Interpreter,
        folder: Path,
        built: Mapping[str, BuiltWheel],
        names: Collection[str],
    ) -> list[SourceDistribution]:
        """Return the sources of those of the named packages that are in the set.

        Nothing is executed to learn their dependencies; they count as having none.

        Args:
            names: Packages that are to be built from their source.

        Raises:
            PackageError: As `resolve`.
        """
        found = folder / "pylock.toml"
        _write_dependencies(folder, {**dict.fromkeys(names), **built})
        options = _compile_options(requirements, constraints, folder)
        options += ["--format", "pylock.toml", "--output-file", str(found)]
        await self._call("compile", target, folder, options, names)
        packages = tomllib.loads(found.read_text()).get("packages", [])
        found.unlink()
        return [
            SourceDistribution.read(package)
            for package in packages
            if package["name"] in names
        ]

    async def install(self, lock: str, target: Interpreter, folder: Path) -> None:
        """Unpack the wheels of a lock into a folder, their hashes checked.

        Raises:
            PackageError: A wheel cannot be fetched or is not what the lock says.
        """
        file = folder.with_suffix(".txt")
        file.write_text(lock)
        try:
            options = ["--target", str(folder), "--require-hashes", "--no-deps"]
            options += ["--link-mode", "copy", "--requirements", str(file)]
            await self._call("install", target, folder.parent, options)
        finally:
            file.unlink(missing_ok=True)

    async def _call(
        self,
        command: str,
        target: Interpreter,
        folder: Path,
        options: list[str],
        from_source: Collection[str] = (),
    ) -> None:
        where = ["--python", sys.executable, "--python-version", target.version]
        where += ["--python-platform", target.platform, "--only-binary", ":all:"]
        for package in from_source:
            where += ["--no-binary", package]
        argv = [self._program, "pip", command, *self._options]
        environment = {k: v for k, v in os.environ.items() if k not in _DROPPED}
        with anyio.move_on_after(self._seconds) as time:
            process = await anyio.open_process(
                [*argv, *where, *options],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=folder,
                env={**environment, **self._index.environment},
                umask=0o022,
            )
            async with process:
                stderr = await self._read_until_end(process)
        if time.cancelled_caught:
            raise PackageError(
                f"packages were not there after {self._seconds:g} seconds",
                hint="raise package_rules.seconds",
                details={"reason": "timeout"},
            )
        if process.returncode:
            raise _failure(self._index.without_password(stderr))

    async def _read_until_end(self, process: anyio.abc.Process) -> str:
        """Return the end of its standard error. Raises PackageError."""
        stderr = rest = ""
        written = 0
        max_written = 3 * self._max_bytes + _SLACK_BYTES

        async def look() -> None:
            nonlocal written
            while written <= max_written:
                await anyio.sleep(_LOOK_SECONDS)
                written = max(written, _written(process.pid))
            process.kill()

        assert process.stderr is not None
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(look)
            async for text in TextReceiveStream(process.stderr, errors="replace"):
                stderr = (stderr + text)[-_MAX_STDERR_CHARACTERS:]
                *lines, rest = (rest + text).split("\n")
                self._report(lines)
            await process.wait()
            tasks.cancel_scope.cancel()
        if written > max_written:
            raise too_large(written, self._max_bytes)
        return stderr

    def _report(self, lines: Iterable[str]) -> None:
        if self._on_step is not None:
            for line in map(str.strip, lines):
                if line and not line.startswith(_OF_FAILURES):
                    self._on_step(self._index.without_password(line))


def _write_dependencies(
    folder: Path, packages: Mapping[str, BuiltWheel | None]
) -> None:
    """Write down what packages need, so that uv asks neither them nor an index."""
    lines = []
    for name, built in packages.items():
        lines += ["[[dependency-metadata]]", f"name = {json.dumps(name)}"]
        lines += [f"requires-dist = {json.dumps(built.needs if built else ())}"]
        lines += [f"provides-extra = {json.dumps(built.extras if built else ())}"]
    (folder / "uv.toml").write_text("".join(f"{line}\n" for line in lines))


def _compile_options(
    requirements: Iterable[str], constraints: Sequence[str], folder: Path
) -> list[str]:
    asked, bounds = folder / "asked.txt", folder / "constraints.txt"
    asked.write_text("".join(f"{requirement}\n" for requirement in requirements))
    bounds.write_text("".join(f"{constraint}\n" for constraint in constraints))
    options = ["--quiet", "--no-header", "--no-annotate", str(asked)]
    return [*options, "--constraints", str(bounds)]


def _written(pid: int) -> int:
    """Return the bytes that a process has written until now."""
    try:
        lines = Path(f"/proc/{pid}/io").read_text().splitlines()
    except OSError:
        return 0
    return next(int(line[6:]) for line in lines if line.startswith("wchar:"))


def _failure(stderr: str) -> PackageError:
    reason = next((name for name, mark in _CAUSES if mark.search(stderr)), "failed")
    lines = [line.strip() for line in stderr.splitlines()]
    start = next((i for i, line in enumerate(lines) if line.startswith("error:")), 0)
    problem, _, hint = " ".join(lines[start:]).partition(" hint: ")
    message = hint if reason == "refused" else problem.replace(" cause: ", ": ")
    message = message[:_MAX_MESSAGE_CHARACTERS].removeprefix("error: ")
    return PackageError(
        f"packages cannot be installed: {message}",
        hint=_HINTS.get(reason),
        details={"reason": reason},
    )


def find_uv() -> str:
    """Return the path of uv: that of the `packages` extra, else the one on PATH.

    Raises:
        SandboxUnavailableError: There is none.
    """
    try:
        import uv

        return uv.find_uv_bin()
    except (ImportError, FileNotFoundError):
        pass
    found = shutil.which("uv")
    if found is None:
        raise SandboxUnavailableError(
            "packages need uv, which is not installed",
            hint=install_hint("packages"),
        )
    return found
