"""Questions of threads are read and answered in the console, as any request is."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import httpx2
import pytest

from toolcell.flow import Flow, SQLiteCheckpointer

from ...support.console.served import Service
from ...support.flow.graphs import Log, ask, chain


@pytest.mark.promise("LC-29", "flow-29")
@pytest.mark.parametrize(
    ("pages", "fields", "log"),
    [
        (["approve"], {}, "True"),
        (["edit", "edited"], {"arguments": '{"answer": 41}'}, "41"),
        (["deny"], {"reason": "none"}, "denied: a person refused this call: none"),
    ],
    ids=["approved", "answered", "denied"],
)
def test_a_person_answers_a_question(
    pages: list[str], fields: dict[str, str], log: str, service: Service, tmp_path: Path
) -> None:
    async def go_on() -> Log | None:
        """Run the thread, or go on with it, as a process that was just started."""
        async with SQLiteCheckpointer(tmp_path / "flows.db") as store:
            executor = service.host.executor
            flow = Flow(
                chain(ask), checkpointer=store, executor=executor, agent_id="builder"
            )
            known = await store.exists("t")
            result = await (flow.resume("t") if known else flow.run({}, "t"))
            return result.unwrap() if result.status == "done" else None

    assert service.portal.call(go_on) is None
    [request] = service.waiting()
    cookies, token = service.signed_in("carl", "approver")
    [cookie] = cookies.items()
    headers = {
        "Origin": service.url,
        "Sec-Fetch-Site": "same-origin",
        "Cookie": "=".join(cookie),
    }
    url = f"{service.url}/approvals/{request.id}"
    page = httpx2.get(url, headers=headers, timeout=60).text
    assert "how many?" in unescape(page)
    for answered in pages:
        [digest, *_] = re.findall('name="digest" value="([0-9a-f]{64})"', page)
        form = {"form_token": token, "digest": digest, **fields}
        answer = httpx2.post(
            f"{url}/{answered}", data=form, headers=headers, timeout=60
        )
        assert answer.status_code in (200, 303), answer.text
        page = answer.text

    done = service.portal.call(go_on)
    assert done is not None and done.log == (log,)
