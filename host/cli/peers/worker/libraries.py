"""Sandboxes that are libraries for Python."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from .kind import HELLO, Kind, Run


@asynccontextmanager
async def llm_sandbox(image: str, backend: str) -> AsyncIterator[Kind]:
    """llm-sandbox: a session for each program; its set-up (pip) is left out."""
    module = import_module("llm_sandbox")
    options: dict[str, Any] = {"backend": backend, "skip_environment_setup": True}
    if backend == "docker":
        options |= {"image": image, "keep_template": True}
    yield Kind(
        version=version("llm-sandbox"),
        open=partial(_llm_session, module.SandboxSession, options),
        blocking=True,
        containers=backend == "docker",
    )


@asynccontextmanager
async def llm_sandbox_interactive(image: str) -> AsyncIterator[Kind]:
    """llm-sandbox: an IPython in a container, which its set-up installs there."""
    module = import_module("llm_sandbox")
    options = {"backend": "docker", "image": image, "keep_template": True}
    yield Kind(
        version=version("llm-sandbox"),
        open=partial(_llm_session, module.InteractiveSandboxSession, options),
        keeps_state=True,
        waits="x = 41",
        blocking=True,
        containers=True,
    )


@asynccontextmanager
async def _llm_session(
    kind: Callable[..., AbstractContextManager[Any]], options: dict[str, Any]
) -> AsyncIterator[Run]:
    with kind(lang="python", **options) as session:
        yield lambda code: str(session.run(code).stdout)


@asynccontextmanager
async def smolagents(_: str) -> AsyncIterator[Kind]:
    """smolagents' interpreter, in this process."""
    executor = import_module("smolagents").LocalPythonExecutor

    @asynccontextmanager
    async def opened() -> AsyncIterator[Run]:
        made = executor(additional_authorized_imports=[])
        made.send_tools({})
        yield lambda code: str(made(code).logs)

    yield Kind(
        version=version("smolagents"), open=opened, keeps_state=True, blocking=True
    )


@asynccontextmanager
async def mcp_run_python(_: str) -> AsyncIterator[Kind]:
    """mcp-run-python: Pyodide in Deno."""
    code_sandbox = import_module("mcp_run_python").code_sandbox

    @asynccontextmanager
    async def opened() -> AsyncIterator[Run]:
        async with code_sandbox() as sandbox:

            async def run(code: str) -> str:
                done = await sandbox.eval(code)
                return "\n".join(done["output"]) or str(done)

            yield run

    yield Kind(version=version("mcp-run-python"), open=opened)


@asynccontextmanager
async def jupyter_kernel(_: str) -> AsyncIterator[Kind]:
    """A kernel of Jupyter and its client."""
    start_kernel = import_module("jupyter_client.manager").start_new_async_kernel

    @asynccontextmanager
    async def opened() -> AsyncIterator[Run]:
        manager, client = await start_kernel(kernel_name="python3")

        async def run(code: str) -> str:
            said: list[str] = []

            def hook(message: dict[str, Any]) -> None:
                said.append(message["content"].get("text", ""))

            await client.execute_interactive(code, allow_stdin=False, output_hook=hook)
            return "".join(said)

        try:
            yield run
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)

    yield Kind(version=version("ipykernel"), open=opened, keeps_state=True)


@asynccontextmanager
async def monty(_: str) -> AsyncIterator[Kind]:
    """pydantic-monty: a session of its interpreter in a pooled process."""
    module = import_module("pydantic_monty")

    def run(session: Any, code: str) -> str:
        said: list[str] = []
        session.feed_run(code, print_callback=lambda _, text: said.append(text))
        return "".join(said)

    @asynccontextmanager
    async def idle(count: int) -> AsyncIterator[None]:
        # A new pool: one keeps processes, and has no more of them than processors.
        with module.Monty(max_processes=count) as pool, ExitStack() as stack:
            for _ in range(count):
                run(stack.enter_context(pool.checkout()), HELLO)
            yield

    with module.Monty() as pool:

        @asynccontextmanager
        async def opened() -> AsyncIterator[Run]:
            with pool.checkout() as session:
                yield partial(run, session)

        yield Kind(
            version=version("pydantic-monty"),
            open=opened,
            idle=idle,
            keeps_state=True,
            blocking=True,
        )
