"""What an address answers while its APIs are not open."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest

from toolcell.host.serving.servers import Front

pytestmark = pytest.mark.anyio
WHY = {"reason": "starting", "retry_after": 1.0}


async def test_an_api_that_starts_says_so_in_its_own_form() -> None:
    transport: Any = httpx2.ASGITransport(app=Front(None))
    async with httpx2.AsyncClient(transport=transport, base_url="http://x") as http:
        rest = await http.get("/v1/tools")
        mcp = await http.post("/mcp", json={})

    assert rest.json()["error"]["details"] == WHY
    assert mcp.json()["error"]["data"] == WHY
    for answer in (rest, mcp):
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
