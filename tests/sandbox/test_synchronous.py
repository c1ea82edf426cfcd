"""The synchronous `run` where an event loop runs already, as in a notebook."""

from __future__ import annotations

import anyio
import pytest

from toolcell.sandbox import SandboxConfig, run

from ..conftest import apart

pytestmark = pytest.mark.finding("N13")

CONFIG = SandboxConfig(backend="subprocess")


@pytest.mark.parametrize("library", ["asyncio", "trio"])
def test_a_program_runs_inside_a_running_loop(library: str) -> None:
    async def cell_of_a_notebook() -> list[object]:
        return [run("6 * 7", config=CONFIG).value for _ in range(2)]

    values = apart(lambda: anyio.run(cell_of_a_notebook, backend=library))

    assert values == [42, 42]


def test_its_callbacks_are_called_before_it_returns() -> None:
    heard: list[bytes] = []

    async def cell_of_a_notebook() -> str:
        options = {"on_output": lambda _, data: heard.append(data)}
        result = run("print('heard'); exit(3)", config=CONFIG, **options)
        return result.status

    assert apart(lambda: anyio.run(cell_of_a_notebook)) == "exit"
    assert heard == [b"heard\n"]
