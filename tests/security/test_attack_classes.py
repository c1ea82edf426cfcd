"""The table of attack classes in docs/security.md is what attacks found."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from toolcell.sandbox import SandboxManager

from ..conftest import (
    CONFINED,
    DOCKER,
    RUNSC,
    SUBPROCESS,
    missing,
    need_shared_memory,
    why_no_docker,
)
from ..support.attacks.classes import CLASSES, PRELUDE, Targets
from ..support.ordinary_user import SYSTEM_PYTHON, need_users_of_cells
from ..support.paths import ROOT

pytestmark = pytest.mark.anyio

DOCUMENT = ROOT / "docs" / "security.md"
HEADING = "## Attack classes by level"

NEIGHBOUR = """
import os, secrets, socket
path = os.path.abspath(secrets.token_hex(8))
open(path, "w").write("canary")
server = socket.create_server(("127.0.0.1", 0))
{"neighbour": path, "other": os.getpid(), "server": list(server.getsockname())}
"""


def documented(column: str) -> dict[str, str]:
    """Return what the table says of each attack in a column, bold or not."""
    section = DOCUMENT.read_text().split(f"{HEADING}\n")[1].split("\n## ")[0]
    rows = [
        [cell.strip().strip("*") for cell in line.strip("|").split(" | ")]
        for line in section.splitlines()
        if line.startswith("|")
    ]
    names = rows[0]
    place = names.index(column)
    return {row[0]: row[place] for row in rows[2:]}


@pytest.mark.promise("E-36", "E-39", "E-41", "E-42")
@pytest.mark.parametrize(
    ("column", "row", "options"),
    [
        pytest.param("confined", CONFINED, {}, id="confined"),
        pytest.param(
            "confined, own user", CONFINED, {"python": SYSTEM_PYTHON}, id="own-user"
        ),
        pytest.param("namespaces", SUBPROCESS, {}, id="namespaces"),
        pytest.param("container", DOCKER, {}, id="docker", marks=pytest.mark.docker),
        pytest.param(
            "kernel",
            RUNSC,
            {},
            id="runsc",
            marks=[pytest.mark.docker, pytest.mark.runsc],
        ),
    ],
)
async def test_what_is_open_is_what_the_table_says(
    column: str, row: Any, options: dict[str, Any]
) -> None:
    if row.options["backend"] == "docker":
        if why := why_no_docker(row.options.get("runtime")):
            missing(why)
    if options:
        need_users_of_cells()
    need_shared_memory()
    async with SandboxManager(row.config(**options)) as manager:
        async with manager.session() as neighbour:
            # Its process and its server live on.
            theirs: Any = (await neighbour.run(NEIGHBOUR)).value
            targets = Targets(theirs, options.get("python", sys.executable))
            with targets as given:
                attacks = {
                    k: v for class_ in CLASSES.values() for k, v in class_.items()
                }
                inputs = {"t": given, "attacks": attacks}
                result = await manager.run(PRELUDE, inputs=inputs)
                assert isinstance(result.value, dict), result.stderr
                lives, nice = targets.lives, os.getpriority(0, given["pid"])

    assert result.isolation is not None
    own_uid = "own_uid" in result.isolation.layers
    if column == "confined" and own_uid and os.geteuid() == 0:
        # The interpreter of the tests is one that other users may run.
        column = "confined, own user"
    found = {
        name: "open" if how == "open" else "closed"
        for name, how in result.value.items()
    }
    assert found == documented(column), result.value
    assert (lives, nice) == (True, os.getpriority(0, 0))
    assert own_uid == (column != "confined")
