"""Public notebooks: which cells are refused, and whether a value of one is lost."""

from __future__ import annotations

import ast
import json
from collections import Counter
from typing import Any

import anyio
import pytest

from toolcell.sandbox import Limits, SandboxConfig, SandboxManager, Session
from toolcell.sandbox.cell.notebook import cells

from ...support.corpora import records

pytestmark = [
    pytest.mark.corpus,
    pytest.mark.promise("FP9", "FP10", "FP25"),
    # What the compiler says of the notebooks of others.
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::SyntaxWarning"),
]

NOTEBOOKS = "notebooks/notebooks.jsonl"
CELLS = 10_324
# Python 3.12 in Python 3.11, and what Jupyter refuses as well.
REFUSED = 12
AT_ONCE = 4
# Some train models, or search for minutes.
CELL_SECONDS = 5
# Each has an hour, on a busy machine, too.
PARTS = 8
IN_FULL = [pytest.mark.full, pytest.mark.timeout(3600)]


def compiles(code: str) -> bool:
    try:
        compile(code, "cell", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError:
        return False
    return True


def books() -> list[list[str]]:
    return [record["cells"] for record in records(NOTEBOOKS)]


def test_cells_of_public_notebooks_are_taken() -> None:
    """And none that is plain Python has a command."""
    found = [cell for book in books() for cell in book]
    taken = [cell for cell in found if compiles(cell)]
    others = [cell for cell in found if not compiles(cell)]
    refused = [cell for cell in others if not compiles(cells.python_of(cell))]

    assert len(found) == CELLS
    assert [cell for cell in taken if list(cells.commands(cell))] == []
    assert len(others) > 300
    assert len(refused) <= REFUSED, json.dumps(refused, indent=1)


def shows_value(source: str) -> bool:
    """Return True if the last statement of a cell is an expression that is shown."""
    last = ast.parse(source).body[-1:]
    return bool(last) and isinstance(last[0], ast.Expr) and source.rstrip()[-1:] != ";"


async def ended(session: Session, cell: str) -> tuple[str, str]:
    """Run a cell; return how it ended, and how its value was lost, or ""."""
    source = cells.python_of(cell)
    has_value = compiles(source) and shows_value(source)
    if has_value:
        await session.run("__last = globals().get('_')")
    result = await session.run(cell, limits=Limits(wall_seconds=CELL_SECONDS))
    if not result.ok:
        return result.exception.type if result.exception else result.status, ""
    told = result.value is not None or any(output.is_value for output in result.outputs)
    if has_value and not told:
        # What it is can only be seen from inside.
        seen: Any = await session.run("_ is not __last")
        if seen.value:
            return "ok", f"lost: {cell}"
    return "ok", ""


@pytest.mark.anyio
@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(slice(0, None, 64), id="sample", marks=pytest.mark.timeout(600)),
        *(
            pytest.param(slice(part, None, PARTS), id=f"part-{part}", marks=IN_FULL)
            for part in range(PARTS)
        ),
    ],
)
async def test_cells_of_public_notebooks_run(chosen: slice) -> None:
    """Fewer than 5 % are refused for their syntax or a command; no value is lost."""
    limits = Limits(memory_mib=1024)
    config = SandboxConfig(backend="subprocess", limits=limits, max_concurrency=AT_ONCE)
    ends: Counter[str] = Counter()
    lost: list[str] = []

    async def run(book: list[str]) -> None:
        async with sandbox.session() as session:
            for cell in book:
                kind, problem = await ended(session, cell)
                ends[kind] += 1
                lost.extend([problem] if problem else [])

    async with SandboxManager(config) as sandbox, anyio.create_task_group() as tasks:
        for book in books()[chosen]:
            tasks.start_soon(run, book)
    refused = ends["SyntaxError"] + ends["IndentationError"] + ends["UsageError"]
    print(dict(ends.most_common()))

    assert lost == []
    assert ends["ok"] > 0
    assert ends.total() > 100
    assert refused < 0.05 * ends.total(), ends
