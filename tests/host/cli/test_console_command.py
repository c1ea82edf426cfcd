"""`toolcell console --new-admin`: a way back in, beside a console that runs."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2
import pytest

from toolcell.host.operator.people_file import PEOPLE_FILE
from toolcell.host.terminal.user_name import account_name

from ...support.console.served import configured, served
from .conftest import Command


@pytest.mark.promise("JA7")
def test_a_further_admin_signs_in_while_the_console_runs(
    command: Command, tmp_path: Path
) -> None:
    with served(tmp_path) as service:
        port = service.url.rpartition(":")[2]
        address = ("--address", f"localhost:{port}")
        link = command("console", "--new-admin", *address, "--json").json["link"]
        page = httpx2.get(link, timeout=60)
        shown = command("console", "--new-admin", *address).out
        # The newer link ends the older one.
        used = httpx2.get(link, timeout=60)

    assert link.startswith(f"{service.url}/join/")
    assert (page.status_code, "an <strong>admin" in page.text) == (200, True)
    assert f"{service.url}/join/" in shown
    assert used.status_code == 404
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    found = [each for each in map(json.loads, lines) if each["event"] != "decision"]
    assert [(each["event"], each["by"]) for each in found] == [
        ("admin_invited", account_name())
    ] * 2


@pytest.mark.promise("JA7")
@pytest.mark.parametrize(
    ("address", "why"), [("127.0.0.1:0", "port"), ("0.0.0.0:1", "TLS"), ("x", "no add")]
)
def test_a_link_that_leads_nowhere_is_not_made(
    command: Command, tmp_path: Path, address: str, why: str
) -> None:
    configured(tmp_path)
    done = command("console", "--new-admin", "--address", address)

    assert (done.code, done.out) == (2, "")
    assert why in done.err
    assert not (tmp_path / "state" / PEOPLE_FILE).exists()
