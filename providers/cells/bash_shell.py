"""An interactive bash in a cell, driven by what its terminal prints."""

from __future__ import annotations

import asyncio
import codecs
import re
import shlex
import uuid
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import anyio

from toolcell.core import CellLostError
from toolcell.sandbox import Process

from .guarded_session import OUTPUT_BYTES, GuardedSession

PROMPT = "SHELLPS1PREFIX"
"""The prompt that ends an answer of the shell."""

_TERMINAL = (24, 80)
_ENVIRONMENT = {"PS1": PROMPT, "PS2": "", "PS0": "", "TERM": "dumb"}
_SET_PROMPT = f"PS1={PROMPT} PS2= PS0= PROMPT_COMMAND="
_OVERLAP = 4096
_ESCAPES = re.compile(r"\x1B[@-_][0-?]*[ -/]*[@-~]")
_KILL = "kill -9 %1; while kill -0 %1 2>/dev/null; do sleep 0.02; done"
_MARKS = re.compile(r"toolcell-[0-9a-f]{32}:\d+:")
_PAUSE_SECONDS = 1.0
_START_SECONDS = 30.0


class Answer(NamedTuple):
    """The output of a shell until one of the expected texts."""

    output: str
    exit_code: int | None
    matched: str


class BashShell:
    """A shell with job control on a terminal that echoes nothing.

    Commands are given to `eval` as one quoted word and followed by their own mark,
    so that neither their lines nor their output can be taken for the shell's.

    Its output is kept until it is expected; above 10 MiB the beginning is dropped.

    Args:
        process: A bash with a terminal.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._text = ""
        self._searched = 0
        self._more = anyio.Event()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, guarded: GuardedSession, sources: Sequence[str]) -> BashShell:
        """Start a shell that has read some files.

        Raises:
            GuardError, InvalidInputError, CellLostError: As `GuardedSession.spawn`.
            TimeoutError: It did not start.
        """
        command = ["bash", "-c", f"stty -echo && echo {PROMPT} && exec bash -i"]
        shell = cls(await guarded.spawn(command, env=_ENVIRONMENT, pty=_TERMINAL))
        await shell.expect([PROMPT], _START_SECONDS)
        await shell.run(_SET_PROMPT, timeout_seconds=_START_SECONDS)
        for source in sources:
            await shell.run(f"source {shlex.quote(source)}; {_SET_PROMPT}")
        return shell

    async def close(self) -> None:
        """Kill the shell, with all jobs of its terminal."""
        self._reading.cancel()
        with suppress(CellLostError):
            await self._process.kill()

    async def _read(self) -> None:
        decoder = codecs.getincrementaldecoder("utf-8")("backslashreplace")
        async for _, piece in self._process.output():
            self._text += decoder.decode(piece)
            dropped = max(0, len(self._text) - OUTPUT_BYTES)
            self._text = self._text[dropped:]
            self._searched = max(0, self._searched - dropped)
            self._more.set()
            self._more = anyio.Event()
        self._more.set()

    async def expect(
        self, patterns: Sequence[str], timeout_seconds: float | None = None
    ) -> Answer:
        """Wait for the first text that a regular expression matches; take it away.

        Raises:
            TimeoutError: It did not come in time; what came is kept.
            CellLostError: The shell has ended.
        """
        wanted = [re.compile(each) for each in patterns]
        with anyio.fail_after(timeout_seconds):
            while True:
                found = [
                    (each.search(self._text, self._searched), each) for each in wanted
                ]
                met = [(match.start(), match, each) for match, each in found if match]
                if met:
                    break
                self._searched = max(0, len(self._text) - _OVERLAP)
                if self._reading.done():
                    raise CellLostError("the shell has ended", hint="make a new one")
                await self._more.wait()
        _, match, pattern = min(met, key=lambda each: each[0])
        output, self._text = self._text[: match.start()], self._text[match.end() :]
        self._searched = 0
        code = int(match["code"]) if "code" in match.groupdict() else None
        return Answer(_plain(output), code, pattern.pattern)

    async def type(self, line: str) -> None:
        """Write a line to the terminal."""
        await self._process.write(f"{line}\n".encode())

    async def run(
        self,
        command: str,
        expected: Sequence[str] = (),
        timeout_seconds: float | None = None,
    ) -> Answer:
        """Run a command until it ends, or until it prints an expected text.

        Raises:
            TimeoutError: Neither came in time; the command goes on.
            CellLostError: The shell has ended.
        """
        mark = f"toolcell-{uuid.uuid4().hex}"
        end = rf"{mark}:(?P<code>\d+):"
        await self.type(f"eval {shlex.quote(command)}; printf '{mark}:%d:' $?")
        answer = await self.expect([*expected, end], timeout_seconds)
        if answer.matched == end:
            return await self._finished(answer)
        with suppress(TimeoutError):
            late = await self.expect([end], _PAUSE_SECONDS)
            done = await self._finished(late)
            return answer._replace(exit_code=done.exit_code)
        return answer

    async def _finished(self, answer: Answer) -> Answer:
        """Take the prompt, and with it what the shell says about its jobs."""
        after = await self.expect([PROMPT])
        output = (answer.output + after.output).replace(PROMPT, "")
        return answer._replace(output=output, matched=PROMPT)

    async def answer_of(
        self, line: str, expected: Sequence[str], timeout_seconds: float | None
    ) -> Answer:
        """Write a line to a program that runs, and wait for an expected text.

        Raises as `run`.
        """
        await self.type(line)
        return await self.expect([*expected, PROMPT], timeout_seconds)

    async def quiet(self) -> None:
        """Stop the echo that an interactive program may have left behind."""
        await self.run("stty -echo", timeout_seconds=_PAUSE_SECONDS)

    async def interrupt(
        self, expected: Sequence[str], tries: int, timeout_seconds: float
    ) -> Answer:
        """Press Ctrl-C until the shell answers; else stop the job and kill it.

        Raises:
            TimeoutError: Nothing helped.
            CellLostError: The shell has ended.
        """
        wanted = [*expected, PROMPT]
        for _ in range(tries):
            await self._process.write(b"\x03")
            with suppress(TimeoutError):
                return await self.expect(wanted, timeout_seconds)
        await self._process.write(b"\x1a")
        stopped = await self.expect(wanted, timeout_seconds)
        # The shell says that the job was killed once it is gone: in the next answer.
        killed = await self.answer_of(_KILL, expected, _START_SECONDS)
        self._text = f"{killed.output}{self._text}"
        return stopped


def _plain(text: str) -> str:
    return _MARKS.sub("", _ESCAPES.sub("", text)).replace("\r\n", "\n")
