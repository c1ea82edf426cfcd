"""`sandbox.code`: programs that keep their variables, in contexts."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import anyio
from pydantic import Field, SecretStr

from toolcell.sandbox import Event, Finished, SandboxSession
from toolcell.sandbox.spi import Language

from ..protocol.errors import APIError
from ..state.sandbox import CodeContext, Sandbox
from .action import Action, SandboxArguments, Scene
from .commands import charged, program_cost

LANGUAGES: Mapping[str, Language] = {
    "python": "python",
    "bash": "bash",
    "javascript": "node",
    "js": "node",
    "typescript": "node",
    "ts": "node",
}
"""The languages that clients name."""

_INSIST_SECONDS = 0.1


class CodeArguments(SandboxArguments):
    """Code to run."""

    code: str
    language: str
    context_id: str | None = None
    """None: the default context of the language."""

    env: dict[str, str] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Code:
    """A program that is about to run in its context."""

    scene: Scene
    arguments: CodeArguments
    context: CodeContext

    async def events(self) -> AsyncGenerator[Event, None]:
        """Run it, and yield what it says and shows."""
        context, operation = self.context, self.scene.operation
        sandbox = self.scene.sandbox(self.arguments)
        variables = {**sandbox.base_env, **self.arguments.env}
        ended = anyio.Event()
        async with context.turn:
            code = await _in_place(context, self.arguments.code)
            stop = partial(_interrupt, context.session, ended)
            operation.stop_with(partial(sandbox.work.start_soon, stop))
            context.runs += 1
            program = context.session.stream(
                code,
                language=LANGUAGES[context.language],
                secrets={name: SecretStr(value) for name, value in variables.items()},
                gate=operation.gate,
            )
            try:
                async with aclosing(program) as events:
                    async for event in events:
                        if isinstance(event, Finished):
                            sandbox.accounted_ms += event.result.usage.cpu_ms
                            context.is_in_place &= event.result.state != "lost"
                            await operation.settle(event.result)
                        yield event
            finally:
                ended.set()


async def _interrupt(session: SandboxSession, ended: anyio.Event) -> None:
    """Interrupt a program until it ends; it may still wait for its turn."""
    while not ended.is_set():
        await session.interrupt()
        with anyio.move_on_after(_INSIST_SECONDS):
            await ended.wait()


@asynccontextmanager
async def _code(scene: Scene, arguments: CodeArguments) -> AsyncIterator[Code]:
    sandbox = scene.sandbox(arguments)
    if arguments.context_id is None:
        context = await default_context(sandbox, arguments.language)
    else:
        context = known_context(sandbox, arguments.context_id)
        if context.language != arguments.language:
            raise APIError(400, f"the context speaks {context.language}")
    async with charged(scene, sandbox):
        yield Code(scene, arguments, context)


def _cost(sandbox: Sandbox, arguments: CodeArguments) -> Mapping[str, int]:
    limits = sandbox.session.limits
    return program_cost(sandbox, limits, limits.wall_seconds)


def known_context(sandbox: Sandbox, context_id: str) -> CodeContext:
    """Return a context by its id. Raises APIError: there is none."""
    sandbox.session  # noqa: B018 - an ended one has none
    if (found := sandbox.contexts.get(context_id)) is None:
        raise APIError(404, f"there is no context {context_id[:64]}")
    return found


async def new_context(sandbox: Sandbox, language: str, cwd: str) -> CodeContext:
    """Make a context. Raises APIError: there is no such language."""
    if language not in LANGUAGES:
        known = ", ".join(LANGUAGES)
        raise APIError(
            400, f"there is no language {language[:64]!r}; there are {known}"
        )
    session = await sandbox.session.context()
    context = CodeContext(
        id=secrets.token_hex(16), language=language, cwd=cwd, session=session
    )
    sandbox.contexts[context.id] = context
    return context


async def default_context(sandbox: Sandbox, language: str) -> CodeContext:
    """Return the context of a language that no client made; made when it is asked for.

    Raises APIError: there is no such language.
    """
    for context in sandbox.contexts.values():
        if context.is_default and context.language == language:
            return context
    context = await new_context(sandbox, language, sandbox.home)
    context.is_default = True
    return context


async def _in_place(context: CodeContext, code: str) -> str:
    """Lead the context into its folder; return the code to run there."""
    if context.language == "bash":
        return f"cd -- {shlex.quote(context.cwd)} && {code}"
    if context.language != "python":
        return f"process.chdir({json.dumps(context.cwd)}); {code}"
    if not context.is_in_place:
        move = f"__import__('os').chdir({context.cwd!r})"
        result = await context.session.run(move)
        if result.status != "ok":
            raise APIError(400, f"there is no folder {context.cwd}")
        context.is_in_place = True
    return code


CODE = Action("sandbox.code", CodeArguments, _code, _cost)
