"""Files of a sandbox, read and changed by its own commands as its own user.

A command runs beside the sandbox's programs and sees what they see, so rights and links
are those of the program, and nothing leads out of the cell.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import anyio

from toolcell.sandbox import ExecutionResult, SandboxSession
from toolcell.sandbox.spi import SandboxProcess

from ..protocol.errors import APIError

MAX_ENTRIES_BYTES = 16_777_216
"""Bytes of a listing. When it is reached the listing is refused."""

_MAX_PATH_BYTES = 4_096
_PATHS_AT_ONCE = 64
_ENV = {"LC_ALL": "C"}
_SECONDS = 60.0
_FIRST, _LAST = -62_135_596_800.0, 253_402_300_799.0
"""Seconds of the first and the last day that dates can name."""

_FIELDS = ("%p", "%y", "%Y", "%s", "%m", "%M", "%u", "%g", "%T@", "%l")
_PRINT = "\\0".join(_FIELDS) + "\\0"
_TYPES = {"f": "FILE_TYPE_FILE", "d": "FILE_TYPE_DIRECTORY", "l": "FILE_TYPE_SYMLINK"}
_EXISTS = 17
_MAKE = 'if [ -d "$1" ]; then exit 17; fi; exec mkdir -p -- "$1"'
_IS_ODD = 18
_NO_FILE = 'if [ -e "$1" ] && [ ! -f "$1" ] && [ ! -d "$1" ]; then exit 18; fi; '
_READ = _NO_FILE + 'exec cat -- "$1"'
_WRITE = _NO_FILE + 'mkdir -p -- "${1%/*}/" && exec cat > "$1"'
_MOVE = 'mkdir -p -- "${2%/*}/" && exec mv -T -- "$1" "$2"'
_PYTHON = ("python3", "-I", "-S", "-c")
_SET_METADATA = """
import json, os, sys
path, wanted = sys.argv[1], json.loads(sys.argv[2])
for name in os.listxattr(path):
    if name.startswith("user.e2b."):
        os.removexattr(path, name)
for key, value in wanted.items():
    os.setxattr(path, "user.e2b." + key, value.encode())
"""
_GET_METADATA = """
import json, os, sys
def metadata(path):
    try:
        names = [name for name in os.listxattr(path) if name.startswith("user.e2b.")]
        values = [os.getxattr(path, name).decode(errors="replace") for name in names]
    except OSError:
        return {}
    return dict(zip([name[9:] for name in names], values))
paths = os.fsdecode(sys.stdin.buffer.read()).split("\\0")
print(json.dumps([metadata(path) for path in paths]))
"""
_REASONS = {
    "No such file or directory": 404,
    "Permission denied": 403,
    "Operation not permitted": 403,
    "Read-only file system": 403,
    "File exists": 409,
    "No space left on device": 507,
}


def resolved(path: str, home: str) -> str:
    """Return an absolute path without `.` and `..`.

    Args:
        path: A path; a relative one, or one that begins with `~`, is below `home`.
        home: The home of the sandbox's user.

    Raises:
        APIError: It holds NUL, leads out of the root, or is too long.
    """
    try:
        size = len(path.encode())
    except UnicodeEncodeError:
        raise APIError(400, "the path is not valid Unicode") from None
    if "\0" in path or size > _MAX_PATH_BYTES:
        raise APIError(400, f"the path holds NUL, or more than {_MAX_PATH_BYTES} bytes")
    if path == "~" or path.startswith("~/"):
        path = home + path[1:]
    elif not path.startswith("/"):
        path = f"{home}/{path}"
    parts: list[str] = []
    for part in path.split("/"):
        if part == "..":
            if not parts:
                raise APIError(400, "the path leads out of the root")
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/" + "/".join(parts)


class CellFiles:
    """The files of one sandbox. Paths are absolute; errors are APIErrors.

    Args:
        session: The sandbox's session.
    """

    def __init__(self, session: SandboxSession) -> None:
        self._session = session

    async def stat(self, path: str) -> dict[str, Any]:
        """Return one entry, as the filesystem service shows it."""
        [entry] = await self._find(path, "-maxdepth", "0")
        return entry

    async def some(self, paths: Sequence[str]) -> list[dict[str, Any]]:
        """Return the entries at these paths, of those that are there."""
        entries: list[dict[str, Any]] = []
        for start in range(0, len(paths), _PATHS_AT_ONCE):
            part = paths[start : start + _PATHS_AT_ONCE]
            argv = ["find", *part, "-maxdepth", "0", "-printf", _PRINT]
            entries += _entries((await self._output(argv))[0])
        return entries

    async def below(self, path: str, depth: int) -> list[dict[str, Any]]:
        """Return what is below a folder, so many folders deep."""
        # A link to a folder is followed as well.
        inside = f"{path}/." if path != "/" else path
        found = await self._find(inside, "-mindepth", "1", "-maxdepth", str(depth))
        return sorted(found, key=lambda entry: str(entry["path"]).split("/"))

    async def make_folder(self, path: str) -> None:
        """Make a folder and those above it. APIError 409: it is there."""
        result = await self._run("sh", "-c", _MAKE, "sh", path)
        if result.exit_code == _EXISTS:
            raise APIError(409, f"the folder {path} is there already")
        _check(result, path)

    async def move(self, source: str, target: str) -> None:
        """Move a file or folder, replacing a file."""
        _check(await self._run("sh", "-c", _MOVE, "sh", source, target), source)

    async def remove(self, path: str) -> None:
        """Remove a file or a folder with all in it; nothing may be there."""
        _check(await self._run("rm", "-rf", "--", path), path)

    @asynccontextmanager
    async def writing(self, path: str) -> AsyncIterator[SandboxProcess]:
        """Write a file by the input of a process; what is there is replaced."""
        process = await self._session.exec(
            ["sh", "-c", _WRITE, "sh", path], stdin="pipe", env=_ENV
        )
        try:
            yield process
            await process.close_stdin()
            _check(await process.wait(), path)
        finally:
            if process.running:
                with anyio.CancelScope(shield=True):
                    await process.kill()

    async def read(self, path: str, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes, the first ones when it is known to be readable."""
        process = await self._session.exec(["sh", "-c", _READ, "sh", path], env=_ENV)
        size = 0
        try:
            async with aclosing(process.output()) as output:
                async for stream, data in output:
                    size += len(data)
                    if stream == "stdout" and size <= max_bytes:
                        yield data
                    elif size > max_bytes:
                        raise APIError(413, f"{path} has more than {max_bytes} bytes")
            _check(await process.wait(), path)
        finally:
            if process.running:
                with anyio.CancelScope(shield=True):
                    await process.kill()

    async def set_metadata(self, path: str, metadata: Mapping[str, str]) -> None:
        """Replace the metadata of a file: extended attributes of `user.e2b.`.

        Raises:
            APIError: 501: the file system of the sandbox has no such attributes.
        """
        argv = [*_PYTHON, _SET_METADATA, path, json.dumps(metadata)]
        if (await self._run(*argv)).status != "ok":
            raise APIError(501, f"{path} cannot have metadata (tmpfs: Linux >= 6.6)")

    async def with_metadata(
        self, entries: Sequence[dict[str, Any]]
    ) -> list[dict[str, Any]]:
        """Return entries with the metadata that their files have."""
        if not entries:
            return []
        paths = "\0".join(str(entry["path"]) for entry in entries)
        argv = [*_PYTHON, _GET_METADATA]
        found, result = await self._output(argv, stdin=paths.encode())
        _check(result, "metadata")
        return [
            {**entry, "metadata": metadata} if metadata else entry
            for entry, metadata in zip(entries, json.loads(found), strict=True)
        ]

    async def _find(self, path: str, *options: str) -> list[dict[str, Any]]:
        argv = ["find", path, *options, "-printf", _PRINT]
        found, result = await self._output(argv)
        entries = list(_entries(found))
        if not entries or result.status != "exit":
            _check(result, path)
        return entries

    async def _output(
        self, argv: Sequence[str], *, stdin: bytes | None = None
    ) -> tuple[bytes, ExecutionResult]:
        """Return all that a command wrote to standard output, and its end."""
        process = await self._session.exec(
            argv, stdin=stdin, env=_ENV, timeout_seconds=_SECONDS
        )
        found = bytearray()
        async with aclosing(process.output()) as output:
            async for stream, data in output:
                found += data if stream == "stdout" else b""
                if len(found) > MAX_ENTRIES_BYTES:
                    await process.kill()
                    raise APIError(413, "there are too many entries")
        return bytes(found), await process.wait()

    async def _run(self, *argv: str) -> ExecutionResult:
        process = await self._session.exec(argv, env=_ENV, timeout_seconds=_SECONDS)
        return await process.wait()


def _entries(found: bytes) -> list[dict[str, Any]]:
    values = found.decode("utf-8", "replace").split("\0")
    width = len(_FIELDS)
    rows = range(0, len(values) - width, width)
    return [_entry(*values[start : start + width]) for start in rows]


def _entry(
    path: str,
    kind: str,
    target_kind: str,
    size: str,
    mode: str,
    permissions: str,
    owner: str,
    group: str,
    modified: str,
    link: str,
) -> dict[str, Any]:
    # A listing begins at `folder/.`.
    path = path.replace("/./", "/", 1)
    entry = {
        "name": posixpath.basename(path) or "/",
        "type": _TYPES.get(target_kind, _TYPES.get(kind, "FILE_TYPE_UNSPECIFIED")),
        "path": path,
        "size": size,
        "mode": int(mode, 8),
        "permissions": permissions,
        "owner": owner,
        "group": group,
        "modifiedTime": _date(float(modified[:17])),
    }
    if kind == "l":
        entry["symlinkTarget"] = posixpath.join(posixpath.dirname(path), link)
    return entry


def _date(seconds: float) -> str:
    """Return a time as text; one that no calendar of ours has is the nearest."""
    known = min(max(seconds, _FIRST), _LAST)
    return (
        datetime.fromtimestamp(known, UTC).isoformat(timespec="microseconds")[:26] + "Z"
    )


def _check(result: ExecutionResult, path: str) -> None:
    """Raise the APIError of a command that failed."""
    if result.status == "ok":
        return
    if result.exit_code == _IS_ODD:
        raise APIError(400, f"{path} is a pipe or a device, and no file")
    if result.status != "exit":
        raise APIError(504, f"{path}: the command was ended ({result.status})")
    said = result.stderr.strip().rpartition("\n")[2]
    why = said.rpartition(": ")[2] or "it failed"
    raise APIError(_REASONS.get(why, 400), f"{path}: {why}")
