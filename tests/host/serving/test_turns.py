"""What a request may do once its turn has come, and which requests pass others by."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from toolcell.host import HostConfig
from toolcell.host.config.server import API
from toolcell.host.http import serving
from toolcell.host.http.agent_shares import AgentShares
from toolcell.host.http.tokens import open_tokens

from .served_doors import APIS, message, served

pytestmark = pytest.mark.anyio


@pytest.mark.namespaces
@pytest.mark.promise("R67")
@pytest.mark.parametrize("door", APIS)
async def test_a_token_that_is_revoked_in_the_line_begins_nothing(
    tmp_path: Path, door: API, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Else the look at all open requests may end it first.
    monkeypatch.setattr(serving, "LOOK_SECONDS", 600)
    async with served(tmp_path, "d" if door == "e2b" else "a") as http:
        with open_tokens(HostConfig.from_file(tmp_path / "toolcell.toml")) as tokens:

            async def revoked_meanwhile(*line: Any, **kind: Any) -> bool:
                for token in tokens.all():
                    tokens.revoke(token.id)
                return True

            monkeypatch.setattr(AgentShares, "turn", revoked_meanwhile)
            answer = await http.post(**message(door, "x"))

    assert answer.status_code == 401


@pytest.mark.namespaces
async def test_what_ends_things_has_turns_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[bool] = []
    turn = AgentShares.turn

    async def noted(shares: AgentShares, agent_id: str, **kind: Any) -> bool:
        ends.append(kind.get("ends", False))
        return await turn(shares, agent_id, **kind)

    monkeypatch.setattr(AgentShares, "turn", noted)
    async with served(tmp_path) as http:
        await http.get("/v1/calls/x?wait=0")
        await http.post("/v1/calls/x/cancel")
        await http.get("/sandboxes")
        await http.delete("/sandboxes/x")

    # The cancel waits for what may make its call.
    assert ends == [False, True, False, False, True]
