"""Small programs in bash and JavaScript do in cells what they do by themselves."""

from __future__ import annotations

import tomllib
from functools import partial
from pathlib import Path
from typing import Literal

import anyio
import pytest

from toolcell.sandbox import SandboxManager

from ...conftest import BackendRow
from ...support.cells.node_cells import node, options
from .doors import End, end_of, plain_end

pytestmark = pytest.mark.anyio

STDIN = b"first\n\xc3\xa4\r\nlast"
PROGRAMS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("languages.toml").read_text()
)
AT_ONCE = 4


@pytest.mark.parametrize("language", ["bash", "node"])
async def test_another_language_is_as_plain(
    backend: BackendRow, tmp_path: Path, language: Literal["bash", "node"]
) -> None:
    more = options(backend) if language == "node" else {}
    command = [str(node()), "main.js"] if language == "node" else ["bash", "main.sh"]
    found: list[tuple[str, End, End]] = []
    at_once = anyio.CapacityLimiter(AT_ONCE)

    async def compare(code: str, folder: Path) -> None:
        async with at_once:
            folder.mkdir()
            wanted = await plain_end(command, code, STDIN, folder)
            run = await sandbox.run(code, language=language, stdin=STDIN)
            if (got := end_of(run)) != wanted:
                found.append((code, got, wanted))

    async with SandboxManager(backend.config(**more)) as sandbox:
        async with anyio.create_task_group() as tasks:
            for number, code in enumerate(PROGRAMS[language]):
                tasks.start_soon(partial(compare, code, tmp_path / str(number)))
    assert not found
