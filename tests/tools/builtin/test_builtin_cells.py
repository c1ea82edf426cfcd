"""`run_python`, `run_shell` and the files of a workspace, on every backend."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from toolcell.core import ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, Budget
from toolcell.sandbox import SandboxManager
from toolcell.tools import ConcurrentExecutor, ToolRegistry
from toolcell.tools.builtin import code_tools, workspace_tools

from ...conftest import BackendRow

pytestmark = pytest.mark.anyio


class Desk:
    """Tools and a way to call them briefly."""

    def __init__(self, *tools: Any, **options: Any) -> None:
        options = {"guard": None, **options}
        self.executor = ConcurrentExecutor(ToolRegistry(tools), **options)
        self._number = 0

    async def __call__(self, name: str, **arguments: Any) -> Any:
        self._number += 1
        result = await self.executor.call(
            ToolCall(id=str(self._number), name=name, agent_id="a", arguments=arguments)
        )
        if result.error is not None:
            return f"{result.status}: {result.error.message}"
        return result.content


@pytest.fixture
async def desk(sandbox: SandboxManager) -> AsyncIterator[Desk]:
    async with sandbox.session(agent_id="a") as session:
        yield Desk(*workspace_tools(session), *code_tools(session))


async def test_programs_run_in_cells_of_their_own(
    sandbox: SandboxManager, backend: BackendRow
) -> None:
    desk = Desk(*code_tools(sandbox))
    first = await desk("run_python", code="open('f', 'w').write('x')\nprint('hi')\n41")
    second = await desk("run_shell", command="ls f; exit 3")
    failed = await desk("run_python", code="1 / 0")

    assert (first["status"], first["stdout"], first["value"]) == ("ok", "hi\n", 41)
    assert (second["status"], second["stdout"], second["exit_code"]) == ("exit", "", 3)
    assert failed["status"] == "error"
    assert "ZeroDivisionError" in failed["traceback"]
    records = desk.executor.records.all_records()
    # A program that fails is an answer, and its cost is the cell's.
    assert [record.status for record in records] == ["ok"] * 3
    assert {record.backend for record in records} == {backend.options["backend"]}
    assert all("cpu_ms" in record.usage for record in records)


@pytest.mark.promise("JF3")
async def test_a_model_reads_which_module_is_missing(sandbox: SandboxManager) -> None:
    told = await Desk(*code_tools(sandbox))("run_python", code="import not_here")

    assert "module 'not_here' is missing" in told["warnings"][0]


@pytest.mark.promise("FP23")
async def test_a_model_sees_a_progress_bar_as_a_terminal_leaves_it(
    sandbox: SandboxManager,
) -> None:
    desk = Desk(*code_tools(sandbox))
    code = "for n in range(99): print(f'\\r{n}%', end='')\nprint('\\rdone\\na\\r\\n')"
    told = await desk("run_python", code=code)

    assert told["stdout"] == "done\na\n\n"


async def test_programs_draw_on_budgets(sandbox: SandboxManager) -> None:
    budget = Budget(unit="bytes", limit=3 * 1_048_576)
    guard = ActionGuard(
        [AgentPolicy(agent_id="a", allow=["run_python"], budgets=[budget])]
    )
    desk = Desk(*code_tools(sandbox), guard=guard)
    code = "print('x' * 999_999)"
    told = [await desk("run_python", code=code) for _ in range(3)]

    # Each holds two full streams, and is charged the one that it printed.
    assert [each["status"] for each in told[:2]] == ["ok", "ok"]
    assert str(told[2]).startswith("denied")


async def test_a_workspace_is_shared_by_files_and_programs(desk: Desk) -> None:
    text = "one\ntwo\nthree\n"
    assert await desk("write_file", path="notes/a.txt", text=text) == {
        "path": "notes/a.txt",
        "bytes": len(text),
    }
    assert (await desk("run_shell", command="cat notes/a.txt"))["stdout"] == text
    await desk("run_python", code="open('made.py', 'w').write('x = \"two\"\\n')")

    assert await desk("read_file", path="notes/a.txt", first_line=2, lines=1) == {
        "text": "two\n",
        "first_line": 2,
        "lines": 3,
    }
    assert await desk("edit_file", path="notes/a.txt", old="two", new="2") == {
        "path": "notes/a.txt",
        "bytes": 12,
    }
    assert (await desk("read_file", path="notes/a.txt"))["text"] == "one\n2\nthree\n"
    assert await desk("list_files") == {
        "files": [
            {"path": "made.py", "bytes": 10},
            {"path": "notes/a.txt", "bytes": 12},
        ],
        "more": False,
    }
    assert await desk("search_files", pattern="t[wh]") == {
        "matches": [
            {"path": "made.py", "line": 1, "text": 'x = "two"'},
            {"path": "notes/a.txt", "line": 3, "text": "three"},
        ],
        "more": False,
    }


@pytest.mark.parametrize(
    ("name", "arguments", "reason"),
    [
        ("read_file", {"path": "none"}, "no such file"),
        ("read_file", {"path": "."}, "no such file"),
        ("write_file", {"path": ".", "text": ""}, "a folder of this name"),
        ("edit_file", {"path": "a", "old": "x", "new": ""}, "occurs 0 times"),
        ("edit_file", {"path": "a", "old": "a", "new": ""}, "occurs 2 times"),
        ("edit_file", {"path": "a", "old": "", "new": "x"}, "occurs 0 times"),
        ("search_files", {"pattern": "("}, "no regular expression"),
        ("list_files", {"path": "none"}, "no such folder"),
        ("read_file", {"path": "b"}, "not UTF-8"),
    ],
)
async def test_what_cannot_be_done_is_told(
    desk: Desk, name: str, arguments: dict[str, Any], reason: str
) -> None:
    await desk("run_shell", command=r"printf aa > a; printf '\xff' > b")

    assert reason in await desk(name, **arguments)


@pytest.mark.promise("E-94", "E-96", "E-97", "RO-08", "RL-26", "RA-08")
async def test_paths_stay_in_the_workspace(desk: Desk) -> None:
    """And what lies outside is the cell's own, never the host's."""
    await desk(
        "run_shell",
        command="ln -s /etc/passwd link; ln -s / root; mkdir -p ../tmp/work-secret; "
        "echo canary > /tmp/canary; ln -s /tmp up",
    )
    paths = [
        "/etc/passwd",
        "../tmp/canary",
        "link",
        "root/etc/passwd",
        "up/canary",
        "x/../../tmp/canary",
        "/proc/self/environ",
        "a\0b",
        "\n/etc/passwd",
    ]
    for path in paths:
        read = await desk("read_file", path=path)
        assert str(read).startswith("error: "), path
    for path in ["../tmp/new", "/tmp/new", "up/new", "root/tmp/new"]:
        written = await desk("write_file", path=path, text="x")
        assert "out of the workspace" in written
    listed = await desk("list_files", path="root")
    assert "out of the workspace" in listed
    found = await desk("search_files", pattern="canary|root:")

    assert found == {"matches": [], "more": False}


@pytest.mark.promise("E-95")
async def test_odd_files_do_not_hang(desk: Desk) -> None:
    await desk("run_shell", command="mkfifo pipe; ln -s pipe to_pipe; ln -s loop loop")

    assert "no such file" in await desk("read_file", path="pipe")
    assert await desk("search_files", pattern="x") == {"matches": [], "more": False}
    assert [f["path"] for f in (await desk("list_files"))["files"]] == [
        "loop",
        "pipe",
        "to_pipe",
    ]
