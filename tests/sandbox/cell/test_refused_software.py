"""Software that asks for what every cell refuses says what docs/languages.md says."""

from __future__ import annotations

import pytest

from toolcell.sandbox import Sandbox, SandboxManager

from ...conftest import SUBPROCESS
from ...support.cells.node_cells import node
from ...support.paths import ROOT

pytestmark = pytest.mark.anyio

REFUSED = {
    "interfaces": "import socket\nsocket.if_nameindex()",
    "changes of files": """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
if libc.inotify_init1(0) < 0:
    raise OSError(ctypes.get_errno(), "inotify_init1")
""",
    "its own CPUs": "import os\nos.sched_setaffinity(0, os.sched_getaffinity(0))",
}
MODULES = "const os = require('os'), fs = require('fs')\n"
NO_INTERFACES = "os.networkInterfaces = () => ({})"


@pytest.mark.promise("QX3", "QX4", "QX5")
@pytest.mark.parametrize("what", REFUSED)
async def test_python_says_that_it_has_no_permission(
    sandbox: Sandbox, what: str
) -> None:
    result = await sandbox.run(REFUSED[what])

    assert result.status == "error"
    assert result.stderr.splitlines()[-1].startswith("PermissionError"), result.stderr


@pytest.mark.promise("QX3", "QX4")
@pytest.mark.parametrize(
    ("code", "said", "what_helps", "helped"),
    [
        (
            "os.networkInterfaces()",
            "uv_interface_addresses returned Unknown system error 1",
            NO_INTERFACES,
            f"{NO_INTERFACES}; os.networkInterfaces()",
        ),
        (
            "fs.watch('.')",
            "EPERM",
            "fs.watchFile",
            "fs.watchFile('.', () => {}); fs.unwatchFile('.')",
        ),
    ],
)
async def test_what_the_page_says_that_helps_node_does(
    code: str, said: str, what_helps: str, helped: str
) -> None:
    page = (ROOT / "docs" / "languages.md").read_text()

    async with SandboxManager(SUBPROCESS.config(node=str(node()))) as here:
        refused = await here.run(MODULES + code, language="node")
        done = await here.run(MODULES + helped, language="node")

    assert (refused.status, said in refused.stderr) == ("error", True), refused.stderr
    assert done.status == "ok", done.stderr
    assert said in page
    assert what_helps in page
