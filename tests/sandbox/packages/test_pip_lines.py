"""`pip install` in cells of sessions and notebooks, which the host does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolcell.sandbox import SandboxManager, notebook_program

from ...conftest import BackendRow
from ...support.cells.package_index import Index, filled

pytestmark = [pytest.mark.anyio, pytest.mark.promise("S2")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return filled(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
async def packed(
    backend: BackendRow, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxManager]:
    store: Path = tmp_path_factory.mktemp("packages") / "store"
    rules = index.rules(store, "kind", "stem")
    async with SandboxManager(backend.config(package_rules=rules)) as manager:
        yield manager


async def test_lines_install_by_the_rules_of_packages(packed: SandboxManager) -> None:
    """Which hold for them alone, and are no error of the cell that asks for more."""
    async with packed.session() as session:
        first = await session.run(
            "text = '''\n!pip install shadow\n'''\n"
            "!pip install -q 'kind<2' 2>&1 | tail -1\nimport kind\nkind.answer()"
        )
        later = await session.run("kind.answer()")
        more = await session.run(
            "if True:\n    %pip install stem\nimport stem\nstem.leaf.name"
        )
        refused = await session.run(
            "!{sys.executable} -m pip install shadow\nprint(_exit_code)\n"
            "%pip install -r needed.txt\n!pip install git+https://a.example/b"
        )
        again = await session.run("!pip install 'kind<2'\n_exit_code")

    assert first.value == later.value == 41, first.stderr
    assert first.stdout == "Requirement already satisfied: kind<2\n"
    assert more.value == "leaf", more.stderr
    assert (refused.status, refused.stdout) == ("ok", "1\n")
    errors = refused.stderr.splitlines()
    assert [error[:7] for error in errors] == ["ERROR: "] * 3
    assert "not allowed here: the package shadow" in errors[0]
    assert "option -r is not known" in errors[1]
    assert "git+https://a.example/b" in errors[2]
    assert again.value == 0, again.stderr


async def test_cells_of_a_notebook_install(packed: SandboxManager) -> None:
    cells = ["%%capture\n!pip install kind", "import kind\nkind.answer()"]
    result = await packed.run(notebook_program(cells))
    plain = await packed.run("pip = '''\n!pip install kind\n'''\nimport kind")

    assert result.value == 42, result.stderr
    assert plain.exception is not None


async def test_what_is_there_is_satisfied(packed: SandboxManager) -> None:
    """Also if no rule allows it: an image may have it."""
    code = (
        "import pathlib, sys\n"
        "folder = pathlib.Path('there-1.5.dist-info')\nfolder.mkdir()\n"
        "(folder / 'METADATA').write_text('Name: there\\nVersion: 1.5\\n')\n"
        "!pip install there there==1.5\ncodes = [_exit_code]\n"
        "!pip install there==2\ncodes + [_exit_code]"
    )
    async with packed.session() as session:
        result = await session.run(code)

    assert result.value == [0, 1], result.stderr
