"""Agents, the audit log, policies and health in the console."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from toolcell.guard import verify_audit
from toolcell.guard.spi import audit_page

from ...support.console.client import Client
from ...support.console.served import Service, served

CODE = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["code"]
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with served(tmp_path_factory.mktemp("console"), CODE) as made:
        for number in range(3):
            made.call("note", text=f"{number}").result(60)
        made.call("pay", to="thief").result(60)
        made.call("note", agent="str/anger", text="x").result(60)
        yield made


def log(service: Service) -> Path:
    path = service.host.config.audit.path
    assert path is not None
    return path


def words(text: str) -> str:
    return " ".join(text.replace("<wbr>", "").split())


def test_agents_are_shown_with_limits_and_plots(
    service: Service, viewer: Client, operator: Client
) -> None:
    listed = words(viewer.page("/agents"))
    shown = words(viewer.page("/agents/builder"))
    assert "str/anger no policy" in listed
    assert "builder usd/day 5.00 0.00 0.00 5.00 in" in shown
    assert "Calls 4 calls; most at" in shown
    assert "Refused 1 calls; most at" in shown
    assert "Money 0 USD" in shown
    assert viewer.acts == set()
    viewer.act("/agents/builder/reset", 403)
    viewer.page("/agents/nobody", 404)
    assert "Calls 1 calls; most at" in words(viewer.page("/agents/str/anger"))

    service.portal.call(_charge, service)
    assert "5.00 0.25 0.00 4.75 in" in words(viewer.page("/agents/builder"))
    operator.page("/agents/builder")
    assert operator.acts == {"/agents/builder/reset"}
    operator.act("/agents/builder/reset")
    assert "5.00 0.00 0.00 5.00 in" in words(viewer.page("/agents/builder"))
    last = audit_page(log(service), limit=1)[0].record
    assert (last["event"], last["agent_id"], last["by"]) == (
        "reset",
        "builder",
        "operator",
    )
    operator.act("/agents/nobody/reset", 409)


async def _charge(service: Service) -> None:
    from toolcell.core import ToolCall
    from toolcell.guard import CallFacts

    call = ToolCall(id="1", name="note", agent_id="builder")
    facts = CallFacts(cost={"usd": "0.25"})
    async with service.host.guard.admit(call, facts) as permit:
        await permit.settle({"usd": "0.25"})


def test_the_log_is_read_by_number_checked_and_its_heads_kept(
    service: Service, viewer: Client, operator: Client
) -> None:
    audit = service.host.audit
    assert audit is not None
    for number in range(120):
        audit.append("note", text=f"<i>{number}</i>")
    last = audit_page(log(service), limit=1)[0].seq
    assert last is not None
    first = words(viewer.page("/audit"))
    second = words(viewer.page(f"/audit?before={last - 49}"))
    assert re.search(rf"\b{last - 49} \d\d:", first)
    assert not re.search(rf"\b{last - 50} \d\d:", first)
    assert re.search(rf"\b{last - 50} \d\d:", second)
    assert "<i>119</i>" in viewer.page(f"/audit/{last}")
    for path in ("/audit/0", f"/audit/{last + 1}", "/audit/x", "/audit?before=x"):
        viewer.page(path, 404)
    for path in ("/audit/verify", "/audit/head"):
        viewer.act(path, 403)

    operator.act("/audit/head")
    kept = audit_page(log(service), limit=1)[0].record
    assert (kept["event"], kept["by"]) == ("head_kept", "operator")
    head = f"{kept['seq']}:{kept['hash']}"
    assert head in viewer.page("/audit")
    operator.act("/audit/verify")
    assert f"The log verifies: {kept['seq']} records, against 1 kept heads" in checked(
        viewer
    )
    lines = log(service).read_bytes().splitlines(keepends=True)
    # Cut while it is checked, and put back: the host goes on writing it.
    log(service).write_bytes(b"".join(lines[:-1]))
    operator.act("/audit/verify")
    told = checked(viewer)
    log(service).write_bytes(b"".join(lines))
    assert "The log does not verify" in told
    assert "truncated" in told
    assert verify_audit(log(service)).ok


def checked(client: Client) -> str:
    """Return the page once a check has ended."""
    end = time.monotonic() + 60
    while time.monotonic() < end:
        page = words(client.page("/audit"))
        if "Look again" not in page:
            return page
    raise AssertionError(page)


def test_policies_explain_what_they_decide(service: Service, viewer: Client) -> None:
    page = words(viewer.page("/policies"))
    assert '"agent_id": "builder"' in page
    assert "run_script" in page
    assert viewer.acts == {"/explain"}
    before = len(audit_page(log(service), limit=1_000))

    def explained(**asked: str) -> str:
        return words(viewer.act("/explain", 200, **asked).text)

    told = explained(agent="builder", tool="pay", arguments='{"to": "thief"}')
    assert "builder.deny[0]" in told
    assert ">deny</span>" in told
    assert ">ask</span>" in explained(
        agent="builder", tool="pay", arguments='{"to": "a"}'
    )
    assert "no_policy" in explained(agent="<b>nobody</b>", tool="none", arguments="")
    for wrong in ("[1]", "{", '{"to": 1, "to": 2}', '{"wrong": 1}'):
        answer = viewer.act(
            "/explain", 409, agent="builder", tool="pay", arguments=wrong
        )
        assert "Not done" in answer.text
    assert len(audit_page(log(service), limit=1_000)) == before
    tool = words(viewer.page("/tools/pay"))
    assert "Pay somebody." in tool
    assert "Seen by builder, buyer" in tool
    viewer.page("/tools/none", 404)


def test_a_refusal_of_before_is_explained(service: Service, viewer: Client) -> None:
    [refused] = service.host.executor.records.page(status="denied", tool_name="pay")
    told = words(viewer.page(f"/runs/{refused.number}/why"))

    assert "Rule or limit builder.deny[0]" in told
    assert '"event": "decision"' in told
    assert "builder.deny[0] yes" in told
    record = words(viewer.page(f"/runs/{refused.number}"))
    assert "denied: denied, by builder.deny[0]" in record


def test_health_shows_parts_and_the_doctor(
    service: Service, viewer: Client, operator: Client
) -> None:
    page = words(viewer.page("/health"))
    assert "store answers" in page
    assert "sandbox answers" in page
    assert "The doctor has not looked" in page
    viewer.act("/health/doctor", 403)
    operator.act("/health/doctor")
    page = words(viewer.page("/health"))
    assert "subprocess cell ok" in page
    assert "The doctor has not looked" not in page
