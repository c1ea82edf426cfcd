"""DeepAgents and LangChain: `create_deep_agent(backend=ToolcellSandbox())`."""

from __future__ import annotations

import uuid
from typing import Any

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from toolcell.core import GuardError, InvalidInputError
from toolcell.guard import ActionGuard
from toolcell.sandbox import SandboxConfig
from toolcell.tools import Records

from .cells.guarded_session import exit_code
from .cells.thread_session import ThreadSession

_REFUSED = 126
_TIMED_OUT = 124
_FILE_ERRORS = {
    "missing": "file_not_found",
    "not_folder": "file_not_found",
    "is_folder": "is_directory",
    "denied": "permission_denied",
    "invalid_path": "invalid_path",
}


class ToolcellSandbox(BaseSandbox):
    """A sandbox of DeepAgents in one session of toolcell.

    Commands that the guard refuses end with exit code 126 and its reason as output,
    files with `permission_denied`, so that the model reads it and goes on.

    Args:
        config, guard, agent_id, records: As in `ThreadSession`.

    Raises:
        SandboxUnavailableError: No cell is available.
    """

    def __init__(
        self,
        config: SandboxConfig | None = None,
        *,
        guard: ActionGuard | None = None,
        agent_id: str = "deepagents",
        records: Records | None = None,
    ) -> None:
        self._id = f"toolcell-{uuid.uuid4().hex[:12]}"
        self._thread = ThreadSession(
            config, guard=guard, agent_id=agent_id, records=records
        )

    @property
    def id(self) -> str:
        """The name of this sandbox."""
        return self._id

    def close(self) -> None:
        """End the session with all that runs in it; again: nothing."""
        self._thread.close()

    def __enter__(self) -> ToolcellSandbox:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a script of bash; after `timeout` seconds it ends with code 124.

        Raises:
            CellLostError: The cell is gone.
        """
        return self._thread.call(self._execute, command, timeout)

    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,
    ) -> ExecuteResponse:
        """As `execute`, from asyncio; a cancelled wait ends the script."""
        return await self._thread.acall(self._execute, command, timeout)

    async def _execute(self, command: str, seconds: int | None) -> ExecuteResponse:
        guarded = self._thread.guarded
        try:
            result = await guarded.exec(command, timeout_seconds=seconds)
        except (GuardError, InvalidInputError) as error:
            return ExecuteResponse(output=str(error), exit_code=_REFUSED)
        late = result.status == "timeout"
        return ExecuteResponse(
            output=result.stdout + result.stderr,
            exit_code=_TIMED_OUT if late else exit_code(result),
            truncated=bool(result.truncated),
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, with their folders; each has its own error, or None."""
        return [
            FileUploadResponse(path=path, error=self._attempt("write", path, data)[1])
            for path, data in files
        ]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each has its own error, or its content."""
        answers = []
        for path in paths:
            data, error = self._attempt("read", path)
            answers.append(FileDownloadResponse(path=path, content=data, error=error))
        return answers

    def _attempt(self, what: str, path: str, *data: bytes) -> tuple[Any, str | None]:
        """Return what a call about a file gave, and why it failed."""
        if not path.startswith("/"):
            return None, "invalid_path"
        try:
            guarded = self._thread.guarded
            call = guarded.write_file if what == "write" else guarded.read_file
            return self._thread.call(call, path, *data), None
        except GuardError:
            return None, "permission_denied"
        except InvalidInputError as error:
            reason = str(error.details.get("reason"))
            return None, _FILE_ERRORS.get(reason, str(error))
