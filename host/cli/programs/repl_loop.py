"""The loop of `toolcell repl`: reads, runs and shows programs of one session."""

from __future__ import annotations

import codeop
import signal
import sys
import warnings
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import anyio
from anyio.from_thread import BlockingPortal

from toolcell.core import CellLostError, InvalidInputError, ToolcellError
from toolcell.core.text.printable import escaped_line
from toolcell.sandbox import Artifact, ExecutionResult, Sandbox, SandboxSession
from toolcell.sandbox.spi import save_artifact

from ...terminal.output import print_value
from .program_view import ProgramView
from .run_program import summary
from .shown_outputs import picture_files

T = TypeVar("T")
_INSIST_SECONDS = 1.0
HELP = """\
:files [FOLDER]     list the files of the session
:fork               keep variables and files as they are now
:rollback [NUMBER]  go back to a fork, by default the last one; it stays
:help               this text
:quit               end; so does Ctrl-D
Ctrl-C interrupts what runs, and drops what is typed. Anything else is Python."""


class Repl:
    """Reads, runs and shows until the input ends.

    Args:
        manager: Open in the loop of the portal.
        portal: Runs coroutines in that loop.
        out: A folder for artifacts; None: they are only named.
    """

    def __init__(
        self, manager: Sandbox, portal: BlockingPortal, out: Path | None
    ) -> None:
        self._manager = manager
        self._portal = portal
        self._out = out
        self._artifacts: set[tuple[str, str]] = set()
        self._forks: list[str] = []
        self._inputs = 0
        self._reading = self._interrupted = False
        self._future: Future[ExecutionResult] | None = None
        self._stack = ExitStack()
        self._commands: dict[str, Callable[[str], None]] = {
            ":files": self._files,
            ":fork": self._fork,
            ":rollback": self._rollback,
            ":help": lambda _: print(HELP),
        }

    def run(self) -> None:
        """Read and run until `:quit` or the end of the input."""
        with self._stack:
            self._session = self._open()
            before = signal.signal(signal.SIGINT, self._on_interrupt)
            self._stack.callback(signal.signal, signal.SIGINT, before)
            while (text := self._read()) is not None:
                if text.strip() == ":quit":
                    return
                try:
                    self._do(text)
                except CellLostError as error:
                    _complain(f"{error.message}; variables and files are lost")
                    self._start_new_session()
                except ToolcellError as error:
                    _complain(str(error))

    def _on_interrupt(self, number: int, frame: object) -> None:
        """Hand Ctrl-C to the prompt or to the run, whichever is active."""
        if self._reading:
            raise KeyboardInterrupt
        if self._future is not None and not self._interrupted:
            self._portal.start_task_soon(self._insist, self._future)
        # Between reading and running there is neither; `_run` looks at this flag.
        self._interrupted = True

    async def _insist(self, future: Future[ExecutionResult]) -> None:
        """Interrupt a run until it ends; the first time may be before it begins."""
        while not future.done():
            await self._session.interrupt()
            await anyio.sleep(_INSIST_SECONDS)

    def _open(self) -> SandboxSession:
        session: AbstractContextManager[SandboxSession]
        session = self._portal.wrap_async_context_manager(self._manager.session())
        return self._stack.enter_context(session)

    def _start_new_session(self) -> None:
        self._forks.clear()
        self._session = self._open()

    def _read(self) -> str | None:
        """Return one whole input; None at the end. Ctrl-C drops what was typed."""
        terminal = sys.stdin.isatty()
        lines: list[str] = []
        self._interrupted = False
        while True:
            prompt = ("... " if lines else ">>> ") if terminal else ""
            try:
                lines.append(self._line(prompt))
            except EOFError:
                if terminal:
                    print()
                return "\n".join(lines) or None
            except KeyboardInterrupt:
                print()
                lines.clear()
                continue
            if not _is_incomplete(text := "\n".join(lines)):
                return text

    def _line(self, prompt: str) -> str:
        self._reading = True
        try:
            return input(prompt)
        finally:
            self._reading = False

    def _do(self, text: str) -> None:
        if not text.startswith(":"):
            if text.strip():
                self._show(self._run(text))
            return
        name, _, argument = text.strip().partition(" ")
        command = self._commands.get(name)
        if command is None:
            raise InvalidInputError(f"there is no command {name}", hint=":help")
        command(argument.strip())

    def _run(self, code: str) -> ExecutionResult:
        self._future = future = self._portal.start_task_soon(self._run_shown, code)
        if self._interrupted:
            self._portal.start_task_soon(self._insist, future)
        try:
            return future.result()
        finally:
            self._future = None

    async def _run_shown(self, code: str) -> ExecutionResult:
        view = ProgramView()
        result = await self._session.run(
            code, on_output=view.show, on_display=view.display
        )
        view.finish()
        view.end_line()
        return result

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        return self._portal.start_task_soon(work).result()

    def _show(self, result: ExecutionResult) -> None:
        self._inputs += 1
        print_value(result)
        for line in (*result.reasons, *result.warnings):
            _complain(line)
        # Files stay in a session, so each run returns its artifacts again.
        before, self._artifacts = self._artifacts, set()
        # Without a folder they are named where they were displayed.
        pictures = picture_files(result).values() if self._out else ()
        for artifact in dict.fromkeys((*result.artifacts, *pictures)):
            key = artifact.name, artifact.sha256
            self._artifacts.add(key)
            if key not in before:
                self._save(artifact)
        if result.status not in ("ok", "error"):
            _complain(summary(result))
        if result.state == "lost":
            _complain("variables are lost, files are still there")

    def _save(self, artifact: Artifact) -> None:
        line = f"artifact {artifact.name}, {artifact.mime}, {artifact.size} bytes"
        if self._out is None:
            _complain(f"{line}; --out FOLDER saves them")
            return
        # The same name may come again with other content.
        folder = self._out / str(self._inputs)
        try:
            place = save_artifact(artifact, folder)
        except InvalidInputError as error:
            _complain(f"{line}; not saved: {error.message}")
        else:
            _complain(f"{line}, saved as {place}")

    def _files(self, folder: str) -> None:
        for info in self._wait(partial(self._session.list_files, folder)):
            kind = "" if info.kind == "file" else f" ({info.kind})"
            print(escaped_line(f"{info.size:>12}  {info.path}{kind}"))

    def _fork(self, argument: str) -> None:
        _refuse_argument(argument)
        self._forks.append(self._wait(self._session.checkpoint))
        print(f"fork {len(self._forks)}")

    def _rollback(self, argument: str) -> None:
        number = argument or str(len(self._forks))
        if not number.isdecimal() or not 1 <= int(number) <= len(self._forks):
            raise InvalidInputError(f"there is no fork {number}", hint=":fork")
        self._wait(partial(self._session.rollback, self._forks[int(number) - 1]))
        print(f"back at fork {number}")


def _is_incomplete(text: str) -> bool:
    """Return True if a program needs more lines, as Python's own prompt would."""
    if text.startswith(":"):
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return codeop.compile_command(text) is None
        except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
            # The cell reports it better, and may run another Python version.
            return False


def _refuse_argument(argument: str) -> None:
    if argument:
        raise InvalidInputError("this command takes nothing more", hint=":help")


def _complain(text: str) -> None:
    print(f"toolcell: {escaped_line(text)}", file=sys.stderr)
