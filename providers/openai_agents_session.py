"""The sandbox session of OpenAI Agents: its commands, files and ports are a cell's."""

from __future__ import annotations

import asyncio
import io
import uuid
from pathlib import Path
from typing import Any, Literal

from agents.sandbox import errors, types
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.sandbox_session_state import SandboxSessionState
from agents.sandbox.session.tar_workspace import shell_tar_exclude_args

from toolcell.core import GuardError, InvalidInputError

from .cells.door import open_door
from .cells.guarded_session import exit_code
from .cells.thread_session import ThreadSession

_REFUSED = 126


class ToolcellSessionState(SandboxSessionState):
    """All that a session needs to be resumed beside its snapshot."""

    type: Literal["toolcell"] = "toolcell"


class ToolcellSandboxSession(BaseSandboxSession):
    """One session of toolcell, whose work dir is the root of the manifest.

    A command that the guard refuses ends with exit code 126 and the reason on its
    standard error; a file is an error that carries it. There is one user.

    Args:
        state: The manifest and the snapshot.
        thread: The session; `shutdown` ends it.
    """

    def __init__(self, state: ToolcellSessionState, thread: ThreadSession) -> None:
        self.state = state
        self._thread = thread

    async def running(self) -> bool:
        return self._thread.alive

    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> types.ExecResult:
        words = [str(word) for word in command]
        try:
            result = await self._thread.acall(
                self._thread.guarded.exec,
                words,
                env=await self.state.manifest.environment.resolve(),
                timeout_seconds=timeout,
            )
        except (GuardError, InvalidInputError) as error:
            return types.ExecResult(
                stdout=b"", stderr=str(error).encode(), exit_code=_REFUSED
            )
        if result.status == "timeout":
            raise errors.ExecTimeoutError(command=words, timeout_s=timeout)
        return types.ExecResult(
            stdout=result.stdout_bytes,
            stderr=result.stderr_bytes,
            exit_code=exit_code(result),
        )

    def _prepare_exec_command(
        self,
        *command: str | Path,
        shell: bool | list[str],
        user: str | types.User | None,
    ) -> list[str]:
        _refuse_user(user)
        return super()._prepare_exec_command(*command, shell=shell, user=user)

    async def read(
        self, path: Path, *, user: str | types.User | None = None
    ) -> io.IOBase:
        _refuse_user(user)
        return io.BytesIO(await self._read(await self._validate_path_access(path)))

    async def _read(self, path: Path) -> bytes:
        try:
            return await self._thread.acall(
                self._thread.guarded.read_file, path.as_posix()
            )
        except (GuardError, InvalidInputError) as error:
            if isinstance(error, InvalidInputError) and _is_missing(error):
                raise errors.WorkspaceReadNotFoundError(path=path) from error
            raise errors.WorkspaceArchiveReadError(
                path=path, context={"why": str(error)}, cause=error
            ) from error

    async def write(
        self, path: Path, data: io.IOBase, *, user: str | types.User | None = None
    ) -> None:
        _refuse_user(user)
        payload = data.read()
        await self._write(
            await self._validate_path_access(path, for_write=True), payload
        )

    async def _write(self, path: Path, payload: Any) -> None:
        if not isinstance(payload, str | bytes | bytearray):
            raise errors.WorkspaceWriteTypeError(
                path=path, actual_type=type(payload).__name__
            )
        data = payload if isinstance(payload, str) else bytes(payload)
        try:
            await self._thread.acall(
                self._thread.guarded.write_file, path.as_posix(), data
            )
        except (GuardError, InvalidInputError) as error:
            raise errors.WorkspaceArchiveWriteError(
                path=path, message=f"{path}: {error}", cause=error
            ) from error

    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as an archive that tar makes in the cell."""
        archive = f"/tmp/{uuid.uuid4().hex}.tar"  # noqa: S108 - the cell's own
        excluded = shell_tar_exclude_args(self._persist_workspace_skip_relpaths())
        await self._run_tar("-c", archive, " ".join(excluded))
        data = await self._read(Path(archive))
        await self._exec_checked_nonzero("rm", archive)
        return io.BytesIO(data)

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Unpack such an archive, in the cell."""
        archive = f"/tmp/{uuid.uuid4().hex}.tar"  # noqa: S108 - the cell's own
        await self._write(Path(archive), data.read())
        await self._run_tar("-x", archive, "")
        await self._exec_checked_nonzero("rm", archive)

    async def _run_tar(self, action: str, archive: str, options: str) -> None:
        root = self.state.manifest.root
        script = f'exec tar {action} -f "$1" {options} -C "$2" .'
        await self._exec_checked_nonzero("sh", "-c", script, "sh", archive, root)

    async def mkdir(
        self,
        path: Path | str,
        *,
        parents: bool = False,
        user: str | types.User | None = None,
    ) -> None:
        # The workspace is the cell's work dir, which is there from the beginning.
        if self.normalize_path(path) != self._workspace_root_path():
            await super().mkdir(path, parents=parents, user=user)

    async def _resolve_exposed_port(self, port: int) -> types.ExposedPortEndpoint:
        local = await open_door(self._thread, port)
        return types.ExposedPortEndpoint(host="127.0.0.1", port=local)

    async def _shutdown_backend(self) -> None:
        await asyncio.to_thread(self._thread.close)


def _refuse_user(user: str | types.User | None) -> None:
    if user is not None:
        raise errors.ConfigurationError(
            message=f"commands run as the cell's own user, not as {user!r}",
            error_code=errors.ErrorCode.SANDBOX_CONFIG_INVALID,
            op="exec",
            context={"backend": "toolcell"},
        )


def _is_missing(error: InvalidInputError) -> bool:
    return error.details.get("reason") in ("missing", "not_folder")
