"""Code that keeps its variables, in contexts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest

from .served_sandboxes import Sandbox, served

pytestmark = pytest.mark.anyio


def texts(lines: list[dict[str, Any]], kind: str) -> str:
    return "".join(line["text"] for line in lines if line["type"] == kind)


async def contexts(
    sandbox: Sandbox, method: str, path: str = "", **message: Any
) -> Any:
    headers = {**sandbox.headers, "e2b-sandbox-port": "49999"}
    return await sandbox.http.request(
        method, f"/contexts{path}", json=message, headers=headers
    )


async def test_code_keeps_its_variables_and_shows_its_value(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create(envVars={"FOO": "bar"})
        first = await sandbox.code(code="x = 41; print('hi')")
        second = await sandbox.code(code="x + 1")
        error = await sandbox.code(code="1 / 0")
        # Clients find a final answer by the name of its class alone.
        raising = "def f():\n class Own(Exception): pass\n raise Own('x')\nf()"
        own = await sandbox.code(code=raising)
        env = await sandbox.code(
            code="import os; os.environ['FOO'] + os.environ['B']", env_vars={"B": "2"}
        )
        shell = await sandbox.code(code="pwd", language="bash")

    assert texts(first, "stdout") == "hi\n"
    assert first[-2:] == [
        {"type": "number_of_executions", "execution_count": 1},
        {"type": "end_of_execution"},
    ]
    assert {"type": "result", "text": "42", "is_main_result": True} in second
    assert [each["name"] for each in own if each["type"] == "error"] == ["Own"]
    assert [each["name"] for each in error if each["type"] == "error"] == [
        "ZeroDivisionError"
    ]
    assert texts(env, "result") == "bar2"
    assert texts(shell, "stdout") == "/home/user\n"


async def test_outputs_come_in_order_under_their_names(tmp_path: Path) -> None:
    code = """
print("a")
display({"text/plain": "x", "text/html": "<p>", "x/y+json": {"z": 1}}, raw=True)
print("b")
class Value:
    def _repr_markdown_(self): return "# v"
    def __repr__(self): return "v"
Value()
"""
    async with served(tmp_path) as service:
        sandbox = await service.create()
        lines = await sandbox.code(code=code)

    told = [
        {name: line[name] for name in line if name not in ("type", "timestamp")}
        for line in lines
        if line["type"] in ("stdout", "result")
    ]
    assert told == [
        {"text": "a\n"},
        {
            "text": "x",
            "html": "<p>",
            "extra": {"x/y+json": {"z": 1}},
            "is_main_result": False,
        },
        {"text": "b\n"},
        {"text": "v", "markdown": "# v", "is_main_result": True},
    ]


@pytest.mark.promise("S3", "S6")
async def test_contexts_have_variables_and_folders_of_their_own(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.code(code="x = 1")
        made = (await contexts(sandbox, "POST", cwd="/tmp")).json()
        own = await sandbox.code(
            code="import os; y = 2; os.getcwd()", context_id=made["id"]
        )
        apart = await sandbox.code(code="x", context_id=made["id"])
        listed = (await contexts(sandbox, "GET")).json()
        await contexts(sandbox, "POST", f"/{made['id']}/restart")
        restarted = await sandbox.code(code="y", context_id=made["id"])
        removed = await contexts(sandbox, "DELETE", f"/{made['id']}")
        missing = await contexts(sandbox, "DELETE", f"/{made['id']}")
        kept = await sandbox.code(code="x")

    assert texts(own, "result") == "/tmp"
    assert "NameError" in {each.get("name") for each in apart}
    languages = [each["language"] for each in listed]
    assert languages == ["python", "javascript", "python"]
    assert listed[-1] == made
    assert "NameError" in {each.get("name") for each in restarted}
    assert (removed.status_code, missing.status_code) == (204, 404)
    assert texts(kept, "result") == "1"


@pytest.mark.promise("S1")
async def test_a_client_that_leaves_ends_its_code_alone(tmp_path: Path) -> None:
    code = "x = 41; print('up', flush=True)\nimport time; time.sleep(600)"
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.write("note", b"kept")
        headers = {**sandbox.headers, "e2b-sandbox-port": "49999"}
        message = {"code": code}
        async with sandbox.http.stream(
            "POST", "/execute", json=message, headers=headers
        ) as answer:
            async for line in answer.aiter_lines():
                if '"stdout"' in line:
                    break
        kept = await sandbox.code(code="x + 1")
        note = await sandbox.read("note")

    assert texts(kept, "result") == "42"
    assert note.content == b"kept"


@pytest.mark.promise("S9")
async def test_code_ends_with_the_connection_when_its_sandbox_is_killed(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()

        async def kill_when_it_runs() -> None:
            with anyio.fail_after(60):
                while (await sandbox.read("runs")).status_code != 200:
                    await anyio.sleep(0.02)
            await service.http.delete(f"/sandboxes/{sandbox.id}", headers=service.key())

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kill_when_it_runs)
            with pytest.raises(httpx2.ReadError):
                await sandbox.code(
                    code="import time; open('runs', 'w').close(); time.sleep(600)"
                )
        health = await service.http.get("/health", headers=sandbox.headers)

    assert health.status_code == 502


async def test_languages_that_are_not_there_are_refused(tmp_path: Path) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        answer = await contexts(sandbox, "POST", language="r")

    assert answer.status_code == 400
    assert "'r'" in answer.json()["message"]


@pytest.mark.promise("S2", "S4", "S5", "S6")
async def test_cells_are_those_of_a_notebook_with_data_of_charts(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        lines = await sandbox.code(
            code="""
              !echo hi
              bundle = {"e2b/chart": {"type": "bar"}, "e2b/data": {"a": [1]}}
              display(bundle, raw=True)
              await __import__("asyncio").sleep(0, "text")
            """
        )
        last = await sandbox.code(code="_ + '!'")

    assert texts(lines, "stdout") == "hi\n"
    [shown, value] = [line for line in lines if line["type"] == "result"]
    assert (shown["chart"], shown["data"]) == ({"type": "bar"}, {"a": [1]})
    assert value["text"] == "text"
    assert texts(last, "result") == "text!"


@pytest.mark.promise("S6")
async def test_contexts_of_javascript_have_variables_of_their_own(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as service:
        sandbox = await service.create()
        await sandbox.code(code="let x = 1; const y = 2", language="javascript")
        both = await sandbox.code(
            code="await Promise.resolve(x + y)", language="javascript"
        )
        made = (await contexts(sandbox, "POST", language="javascript")).json()
        apart = await sandbox.code(code="typeof x", context_id=made["id"])

    assert texts(both, "result") == "3"
    assert texts(apart, "result") == "undefined"
