"""Starts a worker for each contender and asks them in turns."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

from toolcell.core import ConfigError
from toolcell.core.text.printable import escaped_line

from .contenders import Contender

STARTS_A_TURN = 5
"""Measurements of `start` that a worker makes when it is asked once."""

_ROUNDS = {"rate": 5, "memory": 3}
_INSTALL_SECONDS = 900.0
_ANSWER_SECONDS = 300.0
_END_SECONDS = 20.0
_LINE_BYTES = 1_000_000
_REASON_CHARACTERS = 160
_PASSED_ON = frozenset(
    "PATH HOME USER LANG LC_ALL TMPDIR XDG_CACHE_HOME XDG_CONFIG_HOME XDG_DATA_HOME"
    " XDG_RUNTIME_DIR DOCKER_HOST DOCKER_CONTEXT DOCKER_CONFIG DOCKER_CERT_PATH"
    " DOCKER_TLS_VERIFY DOCKER_API_VERSION SSL_CERT_FILE SSL_CERT_DIR DENO_DIR"
    " DENO_CERT DENO_TLS_CA_STORE NODE_EXTRA_CA_CERTS NPM_CONFIG_REGISTRY"
    " HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY".split()
)

MEASURES = {
    "start": ("The first result", "ms"),
    "rate": ("First results a second, on all processors", "1/s"),
    "state": ("A program that reads a variable of the one before", "ms"),
    "memory": ("Memory of an idle sandbox, PSS", "MB"),
}
"""Title and unit of each measure."""


@dataclass(slots=True)
class Found:
    """Figures of one contender, or the reasons why it has none."""

    contender: Contender
    version: str = ""
    lost: str = ""
    """The reason why nothing (more) is measured; empty: it is."""

    values: dict[str, list[float]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    """The reason why there is no figure, by measure."""

    def facts(self) -> dict[str, Any]:
        """Return it as JSON values."""
        facts: dict[str, Any] = {
            "name": self.contender.name,
            "ours": self.contender.ours,
            "version": self.version,
            "isolation": self.contender.isolation,
            "call": self.contender.call,
        }
        for name in MEASURES:
            values = self.values.get(name, [])
            if name in self.absent or not values:
                facts[name] = {"absent": self.absent.get(name) or self.lost}
            else:
                facts[name] = _figure(values)
        return facts


@dataclass(frozen=True, slots=True)
class Worker:
    """The process that measures one contender."""

    found: Found
    process: Process
    lines: BufferedByteReceiveStream
    errors: IO[bytes]
    """Standard error of the process and its sandboxes."""

    async def begin(self) -> None:
        """Wait until it is installed and has sent its version."""
        facts = await self._answer(_INSTALL_SECONDS)
        self.found.version = facts.get("version", "")
        self.found.lost = facts.get("failed", "")

    async def measure(self, name: str) -> None:
        """Have it measured once, unless there is nothing to measure."""
        found = self.found
        if found.lost or name in found.absent:
            return
        assert self.process.stdin is not None
        # If it has ended, its last answer says more.
        with contextlib.suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            await self.process.stdin.send(f"{name}\n".encode())
        facts = await self._answer(_ANSWER_SECONDS)
        if "values" in facts:
            found.values.setdefault(name, []).extend(facts["values"])
        else:
            found.absent[name] = facts.get("absent") or facts["failed"]

    async def _answer(self, seconds: float) -> dict[str, Any]:
        try:
            with anyio.fail_after(seconds):
                line = await self.lines.receive_until(b"\n", _LINE_BYTES)
        except TimeoutError:
            self.found.lost = f"no answer in {seconds:g} seconds"
        except (anyio.EndOfStream, anyio.IncompleteRead, anyio.BrokenResourceError):
            self.found.lost = self._last_error() or "its process ended"
        else:
            facts: dict[str, Any] = json.loads(line)
            return {k: _short(v) if isinstance(v, str) else v for k, v in facts.items()}
        return {"failed": self.found.lost}

    def _last_error(self) -> str:
        self.errors.seek(0)
        return _short(self.errors.read().decode(errors="replace"))


async def measure(
    contenders: Iterable[Contender],
    runs: int,
    image: str,
    tell: Callable[[str], None],
) -> list[dict[str, Any]]:
    """Measure contenders in turns; return what was found of each.

    Args:
        contenders: What is measured.
        runs: Measurements of the start of each.
        image: The image of containers.
        tell: Shows what is done now.
    """
    every = [Found(contender) for contender in contenders]
    rounds = dict.fromkeys(("start", "state"), math.ceil(runs / STARTS_A_TURN))
    async with AsyncExitStack() as stack:
        workers = []
        for found in every:
            tell(f"starting {found.contender.name}")
            try:
                command = found.contender.command(image)
            except ConfigError as error:
                found.lost = str(error)
                continue
            workers.append(await stack.enter_async_context(_worker(found, command)))
        for name, count in (rounds | _ROUNDS).items():
            tell(f"measuring: {MEASURES[name][0]}")
            for _ in range(count):
                for worker in workers:
                    await worker.measure(name)
    return [found.facts() for found in every]


@asynccontextmanager
async def _worker(found: Found, command: Sequence[str]) -> AsyncIterator[Worker]:
    with TemporaryFile() as errors:
        process = await anyio.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=_environment(),
            start_new_session=True,
        )
        assert process.stdout is not None
        lines = BufferedByteReceiveStream(process.stdout)
        worker = Worker(found, process, lines, errors)
        try:
            await worker.begin()
            yield worker
        finally:
            with anyio.CancelScope(shield=True):
                await _end(process)


def _environment() -> dict[str, str]:
    """Return the variables for workers, which run programs of other projects.

    Tokens and keys of the caller are not among them, except those of uv's indexes.
    """

    def is_passed_on(name: str) -> bool:
        of_uv = name.startswith("UV_") and not name.startswith("UV_PUBLISH_")
        return of_uv or name.upper() in _PASSED_ON

    return {name: value for name, value in os.environ.items() if is_passed_on(name)}


async def _end(process: Process) -> None:
    """Let a worker close its sandboxes; kill it and all below it if it does not end."""
    assert process.stdin is not None
    await process.stdin.aclose()
    with anyio.move_on_after(_END_SECONDS):
        await process.wait()
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    await process.aclose()


def _figure(values: list[float]) -> dict[str, Any]:
    """Return median and quartiles, with four digits that count."""
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {
        "runs": len(values),
        "low": _rounded(low),
        "median": _rounded(median),
        "high": _rounded(high),
    }


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _short(text: str) -> str:
    """Return the last line of a text of any origin, to be shown in a table."""
    line = escaped_line((text.strip().splitlines() or [""])[-1])
    return line if len(line) <= _REASON_CHARACTERS else f"{line[:_REASON_CHARACTERS]}…"
