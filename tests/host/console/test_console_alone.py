"""The console in a process of its own: what the files have, and nothing that runs."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from toolcell.host import Host
from toolcell.host.console.accounts.sessions import Sessions
from toolcell.host.console.app import open_app
from toolcell.host.console.web.gate import cookie_name
from toolcell.host.operator.event_bus import open_events
from toolcell.host.operator.people import People, Person
from toolcell.host.operator.people_file import PEOPLE_FILE, PeopleFile
from toolcell.host.runtime.sources import open_sources

from ...support.console.served import configured, note

pytestmark = pytest.mark.anyio
URL = "http://localhost:1"


async def test_pages_show_what_the_files_have(tmp_path: Path) -> None:
    config = configured(tmp_path)
    async with Host(config) as host:
        host.registry.register(note)
        await host.call("note", {"text": "<b>hello</b>"}, agent_id="builder")
    folder = config.state.folder
    assert folder is not None
    with PeopleFile(folder / PEOPLE_FILE) as file:
        path = tmp_path / "toolcell.toml"
        async with (
            open_sources(config, path, {}) as sources,
            open_events(sources.event_bus, sources.approvals) as events,
            open_app(sources, file, URL, events) as app,
            httpx2.AsyncClient(
                transport=httpx2.ASGITransport(app), base_url=URL
            ) as http,
        ):
            anna = Person("anna", "operator", None, 0.0)
            People(file)._put_subject("https://issuer.test", "a", anna)
            secret = Sessions(file, 3600, 3600).open("anna", "127.0.0.1")
            http.cookies.set(cookie_name(URL), secret)
            names = (
                "runs runs/1 runs/1/why sessions agents agents/builder audit audit/1"
            )
            names += " policies health"
            pages = {name: await http.get(f"/{name}") for name in names.split()}
            missing = [await http.get(f"/runs/live/1{end}") for end in ("", "/stream")]

    assert {page.status_code for page in pages.values()} == {200}
    assert "&lt;b&gt;hello&lt;/b&gt;" in pages["runs/1"].text
    for name in ("runs", "sessions"):
        assert "of other processes are not seen here" in pages[name].text
    assert "1 calls; most at" in pages["agents/builder"].text
    assert "Serves for" in pages["health"].text
    assert [each.status_code for each in missing] == [404, 404]
