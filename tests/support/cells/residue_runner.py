"""A host that has one program leave something and another one look for it.

It is started as a process of its own, since some are started by an ordinary user. Its
input is JSON: `user`, whose id it takes; `config`, of the manager; `bundle`, the code
of cells, in base 64; `tries`, until a cell was made new; `apart`, if each kind has
cells of its own; `kinds`, pairs of programs by name. Its output is JSON, too.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
from typing import Any

import anyio
import anyio._backends._asyncio

from toolcell.sandbox import ExecutionResult, SandboxConfig, SandboxManager
from toolcell.sandbox.backends import (
    docker,
    launcher_start,
    namespaces,  # noqa: F401 - before the user changes
)
from toolcell.sandbox.client import cell


async def find(
    sandbox: SandboxManager, leave: str, look: str, agents: list[str]
) -> dict[str, Any]:
    """Run both as one program, and then one after the other."""
    whole = await sandbox.run(f"{leave}\n{look}", minimum_freshness="cell")
    reused = False
    for agent in agents:
        first = await sandbox.run(leave, agent_id=agent)
        second = await sandbox.run(look, agent_id=agent)
        reused = _number(second) == _number(first) + 1
        if reused:
            break
    return {
        "whole": whole.status != "ok" or bool(whole.value),
        "leave": [first.status, first.stderr],
        "look": [second.status, second.stderr],
        "found": second.status != "ok" or bool(second.value),
        "reused": reused,
    }


def _number(result: ExecutionResult) -> int:
    assert result.isolation is not None
    return result.isolation.program_number


async def main(wanted: dict[str, Any]) -> dict[str, Any]:
    """Look for each kind in turn."""
    found = {}
    async with SandboxManager(SandboxConfig(**wanted["config"])) as sandbox:
        for name, (leave, look) in wanted["kinds"].items():
            # A cell of its own, also after an attempt whose cell was not made new.
            kind = name if wanted["apart"] else "any"
            agents = [f"{kind} {attempt}" for attempt in range(wanted["tries"])]
            found[name] = await find(sandbox, leave, look, agents)
    return found


if __name__ == "__main__":
    request = json.load(sys.stdin)
    # An ordinary user may be unable to read what is imported late, and cells' code.
    anyio.run(anyio.sleep, 0)
    SandboxConfig()
    importlib.import_module("toolcell.sandbox.client.result_builder")
    packed = base64.b64decode(request["bundle"])
    for name in ("bundle", "compiled_bundle"):
        setattr(launcher_start, name, lambda: packed)
    setattr(docker, "bundle", lambda: packed)  # noqa: B010 - not a public name
    setattr(cell, "_RENEWAL_SECONDS", 90.0)  # noqa: B010 - as patient as the cells
    if request["user"] is not None:
        os.setgroups([])
        os.setresgid(*[request["user"]] * 3)
        os.setresuid(*[request["user"]] * 3)
    json.dump(anyio.run(main, request), sys.stdout)
