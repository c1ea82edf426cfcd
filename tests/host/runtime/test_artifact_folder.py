"""Artifacts of calls in a folder of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

pytestmark = pytest.mark.anyio

TOO_LONG = "x" * 254


def program(text: str) -> str:
    """Return a program that writes a text to files, one with a name that is too long
    once it has a number."""
    lines = ["import os", "os.makedirs('artifacts', exist_ok=True)"]
    for name in ("a.txt", TOO_LONG):
        lines.append(
            f"with open('artifacts/{name}', 'w') as file: file.write('{text}')"
        )
    return "\n".join(lines)


@pytest.mark.promise("JA2", "P-19")
async def test_artifacts_go_to_a_folder(tmp_path: Path) -> None:
    """A name that cannot be is a problem of its file alone."""
    folder = tmp_path / "out"
    config: dict[str, Any] = {
        "sandbox": {"backend": "subprocess"},
        "tools": {"builtin": ["code"]},
        "policies": [{"agent_id": "a", "allow": ["run_python"]}],
    }
    run = RunContext(session="files", artifacts=str(folder))
    made: list[dict[str, Any]] = []
    async with Host(HostConfig(**config)) as host:
        for text in ("one", "two"):
            result = await host.call(
                "run_python", {"code": program(text)}, agent_id="a", run=run
            )
            content: Any = result.content
            assert content["status"] == "ok"
            made += content["artifacts"]

    saved = {"a.txt": "one", TOO_LONG: "one", "a-2.txt": "two"}
    assert {path.name: path.read_text() for path in folder.iterdir()} == saved
    assert {each["reference"] for each in made if "reference" in each} == {
        str(folder / name) for name in saved
    }
    assert [each["name"] for each in made if "problem" in each] == [TOO_LONG]
