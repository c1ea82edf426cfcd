"""curl, wget, git, node and Python use credentials, on every backend."""

from __future__ import annotations

import base64
import secrets
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.sandbox import Limits, Mount, SandboxManager

from ...conftest import BackendRow
from ...support.cells.client_programs import SHOWN, collect
from ...support.cells.gates import Gate
from ...support.cells.mirror import credential_of, inspected
from ...support.cells.node_cells import options
from ...support.cells.web_server import NAME, resolve_here

pytestmark = [pytest.mark.anyio, pytest.mark.promise("boundary-6")]

VALUE = f"ghp_{secrets.token_hex(20)}"
BASIC = base64.b64encode(f"x:{VALUE}".encode()).decode()
HEADER = '"Authorization: Bearer $API_TOKEN"'
PROGRAMS: dict[str, tuple[Any, str]] = {
    "curl": ("bash", f'"$CLIENTS/curl" -sS -H {HEADER} "$url/"'),
    "wget": ("bash", f'"$CLIENTS/wget" -q -O - --header={HEADER} "$url/"'),
    "git": (
        "bash",
        '"$CLIENTS/git" ls-remote "https://x:$API_TOKEN@${url#https://}/repo.git" 2>&1',
    ),
    "node": (
        "node",
        "const bearer = {Authorization: `Bearer ${process.env.API_TOKEN}`}\n"
        "console.log(await (await fetch(url + '/', {headers: bearer})).text())",
    ),
    "python": (
        "python",
        "import os, urllib.request\nrequest = urllib.request.Request(url + '/')\n"
        "request.add_header('Authorization', 'Bearer ' + os.environ['API_TOKEN'])\n"
        "print(urllib.request.urlopen(request).read().decode())",
    ),
}


@pytest.fixture(scope="module")
async def manager(
    backend: BackendRow,
    mirror: Any,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SandboxManager]:
    token = tmp_path_factory.mktemp("secret") / "token"
    token.write_text(VALUE)
    host = f"{NAME}:{mirror.port}"
    with tempfile.TemporaryDirectory() as clients:
        collect(Path(clients), "wget")
        config = backend.config(
            network=inspected(host, certificate),
            credentials=(credential_of(token, host, prefix="ghp_"),),
            limits=Limits(wall_seconds=60, memory_mib=1024),
            mounts=(Mount(source=clients, target=SHOWN),),
            env={"GIT_EXEC_PATH": f"{SHOWN}/bin", "CLIENTS": f"{SHOWN}/bin"},
            **options(backend),
        )
        async with SandboxManager(config, resolver=resolve_here) as manager:
            yield manager


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_program_sends_the_value_and_has_the_placeholder(
    manager: SandboxManager, mirror: Any, program: str
) -> None:
    mirror.heads.clear()
    gate = Gate()
    language, code = PROGRAMS[program]
    result = await manager.run(
        code,
        language=language,
        inputs={"url": f"https://{NAME}:{mirror.port}"},
        agent_id="builder",
        gate=gate,
    )

    assert result.status == "ok", (result.stdout, result.stderr)
    assert any(VALUE in head or BASIC in head for head in mirror.heads)
    assert ["api"] in [outcome.get("used") for outcome in gate.outcomes]
    assert not any(text in repr(result) for text in (VALUE, BASIC))
    if program == "git":
        assert result.stdout.endswith(f"{'1' * 40}\trefs/heads/main\n")
    else:
        assert result.stdout.strip().startswith("ghp_")
