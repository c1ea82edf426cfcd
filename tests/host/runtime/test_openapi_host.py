"""OpenAPI documents in a host: configuration, pins, and our own REST as an API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from toolcell.core import ConfigError
from toolcell.host import Host, HostConfig
from toolcell.tools.spi import OpenAPIPins

from ...support.paths import ROOT
from ...support.toolcell_command import toolcell
from ...support.web.api import WebAPI, document, operation, web_api
from ..rest.served_rest import served

pytestmark = pytest.mark.anyio
POLICY = """
[[policies]]
agent_id = "a"
allow = ["pets__*"]
"""


@pytest.fixture
def api() -> Iterator[WebAPI]:
    with web_api() as found:
        yield found


def settings(folder: Path, api: WebAPI, values: dict[str, Any], more: str = "") -> Path:
    (folder / "pets.json").write_text(json.dumps(values))
    path = folder / "toolcell.toml"
    path.write_text(
        f'[tools.openapi.pets]\ndocument = "pets.json"\nserver = "{api.url}"\n'
        f'networks = ["127.0.0.1/32"]\n{more}\n{POLICY}'
    )
    return path


def pinned(path: Path, *options: str) -> tuple[int, str]:
    done = toolcell("tools", "pin", *options, "--config", str(path))
    assert b"Traceback" not in done.stderr
    return done.returncode, (done.stdout + done.stderr).decode()


async def test_what_nobody_approved_is_not_there(tmp_path: Path, api: WebAPI) -> None:
    path = settings(tmp_path, api, operation("/p"))
    async with Host.from_config(path, environ={}) as host:
        assert host.tools("a") == []
        result = await host.call("pets__act", {}, agent_id="a")

    assert result.error is not None and result.error.kind == "tool.not_found"


@pytest.mark.promise("E-125")
async def test_an_operation_is_called_once_it_is_approved(
    tmp_path: Path, api: WebAPI
) -> None:
    path = settings(tmp_path, api, operation("/p", summary="Count.\u202e"))
    code, shown = pinned(path)
    assert code == 3 and shown.isascii()
    assert "+ act is new" in shown and "Count.\\u202e" in shown
    assert pinned(path, "--yes")[0] == 0
    assert pinned(path)[0] == 0
    async with Host.from_config(path, environ={}) as host:
        called = await host.call("pets__act", {}, agent_id="a")
        other = await host.call("pets__act", {}, agent_id="b")

    assert called.content == {"method": "GET", "target": "/p"}
    assert other.error is not None and other.error.kind == "tool.not_found"
    (tmp_path / "pets.json").write_text(json.dumps(operation("/p", "delete")))
    async with Host.from_config(path, environ={}) as host:
        refused = await host.call("pets__act", {}, agent_id="a")
    assert refused.error is not None and "changed it" in refused.error.message
    assert "`toolcell tools pin pets`" in str(refused.error.hint)
    code, shown = pinned(path, "pets", "--json")
    [report] = json.loads(shown)["servers"]
    assert (code, report["server"], len(report["changes"])) == (3, "pets", 1)
    assert pinned(path, "--yes")[0] == 0
    async with Host.from_config(path, environ={}) as host:
        again = await host.call("pets__act", {}, agent_id="a")
    assert again.content == {"method": "DELETE", "target": "/p"}
    assert [request.method for request in api.requests] == ["GET", "DELETE"]
    assert (tmp_path / "openapi_pins.json").stat().st_mode & 0o777 == 0o600


async def test_pin_tells_what_a_document_has_and_the_api_offers_not(
    tmp_path: Path, api: WebAPI
) -> None:
    item: dict[str, Any] = {"get": {"responses": {}}}
    paths: dict[str, Any] = {f"/{number}": item for number in range(1_001)}
    paths = {"/out": {"$ref": "paths.yaml"}} | paths
    path = settings(tmp_path, api, document(paths))
    _, shown = pinned(path)

    assert "! /out cannot be used: it refers to what is not in its document" in shown
    assert shown.endswith("! 2 more are left out: there are too many\n")
    [report] = json.loads(pinned(path, "--json")[1])["servers"]
    assert (report["omitted"], list(report["unusable"])) == (2, ["/out"])
    path = settings(tmp_path, api, operation("/p"), 'operations = ["act", "repos/*"]')
    code, shown = pinned(path, "--yes")
    assert (
        code == 2 and "no operation of the API pets has a name like 'repos/*'" in shown
    )


@pytest.mark.promise("E-131")
async def test_a_secret_is_named_and_reaches_the_api_alone(
    tmp_path: Path, api: WebAPI
) -> None:
    key = {"type": "apiKey", "in": "header", "name": "X-Key"}
    values = operation("/p", security=[{"key": []}])
    values["components"] = {"securitySchemes": {"key": key}}
    more = 'secrets = { key = "env:PETS_KEY" }\n[state]\nfolder = "state"\n'
    more += '[audit]\npath = "audit.jsonl"'
    path = settings(tmp_path, api, values, more)
    # Neither approving nor listing needs the secret.
    assert pinned(path, "--yes")[0] == 0
    listed = toolcell("tools", "show", "pets__act", "--config", str(path))
    assert b"the API pets" in listed.stdout
    with pytest.raises(ConfigError, match="env:PETS_KEY"):
        async with Host.from_config(path, environ={}):
            pass
    secret = "correct-horse-battery"
    async with Host.from_config(path, environ={"PETS_KEY": secret}) as host:
        assert (await host.call("pets__act", {}, agent_id="a")).ok

    assert api.requests[0].header("X-Key") == secret
    for file in tmp_path.rglob("*"):
        assert not file.is_file() or secret.encode() not in file.read_bytes(), file


async def test_our_own_rest_is_an_api_like_any_other(tmp_path: Path) -> None:
    """Its document becomes tools, and a call of one makes a call there."""
    folder = tmp_path / "rest"
    folder.mkdir()
    async with served(folder) as service:
        written = await service.get("/v1/openapi.json")
        (tmp_path / "rest.json").write_bytes(written.content)
        path = tmp_path / "toolcell.toml"
        path.write_text(
            f"""
            [tools.openapi.rest]
            document = "rest.json"
            server = "{service.url}"
            networks = ["127.0.0.1/32"]
            secrets = {{ token = "env:TOKEN" }}
            [[policies]]
            agent_id = "a"
            allow = ["rest__makeCall", "rest__getCall", "rest__listTools"]
            """
        )
        import anyio

        code, shown = await anyio.to_thread.run_sync(pinned, path, "--yes")
        assert code == 0, shown
        token = service.keys["a"]
        async with Host.from_config(path, environ={"TOKEN": token}) as host:
            names = [tool.name for tool in host.tools("a")]
            sums = {"tool": "calculate", "arguments": {"expression": "6 * 7"}}
            called = await host.call("rest__makeCall", {"body": sums}, agent_id="a")
            content: Any = called.content
            missing = await host.call("rest__getCall", {"id": "none"}, agent_id="a")
            wrong = await host.call("rest__makeCall", {"body": {}}, agent_id="a")

    assert names == ["rest__getCall", "rest__listTools", "rest__makeCall"]
    assert called.ok, called
    assert content["result"]["content"] == 42
    assert missing.error is not None and missing.error.details["status"] == 404
    assert wrong.error is not None and wrong.error.kind == "tool.validation"


@pytest.mark.promise("E-131")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("server = 'https://x'", "either a document or a url"),
        ("server = 'https://x'\nurl = 'https://x/'\ndocument = 'x'", "either a"),
        ("document = 'x'", "tools.openapi.pets.server"),
        ("document = 'x'\nserver = 'https://u:p@x'", "tools.openapi.pets.server"),
        ("document = 'x'\nserver = 'https://x?a=b'", "tools.openapi.pets.server"),
        ("url = 'file:///x'\nserver = 'https://x'", "tools.openapi.pets.url"),
        (
            "document = 'x'\nserver = 'http://x'\nsecrets = { a = 'env:X' }",
            "over https",
        ),
        (
            "document = 'x'\nserver = 'https://x'\nsecrets = { a = 'hunter2' }",
            "never written",
        ),
        ("document = 'x'\nserver = 'https://x'\nnetworks = ['x']", "networks"),
        (
            "document = 'x'\nserver = 'https://x'\n[tools.mcp.Pets]\ncommand = 'x'",
            "one prefix",
        ),
        (
            "document = 'x'\nserver = 'https://x'\nprefix = 'a'\n"
            "[tools.mcp.pets]\ncommand = 'x'",
            "one name",
        ),
    ],
)
def test_an_api_is_described_in_one_clear_way(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(f"[tools.openapi.pets]\n{text}")
    with pytest.raises(ConfigError) as caught:
        HostConfig.from_file(path, environ={})

    assert problem in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_the_guide_shows_a_configuration_that_can_be_used(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "openapi.md").read_text()
    path = tmp_path / "toolcell.toml"
    path.write_text(page.partition("```toml\n")[2].partition("```")[0])
    config = HostConfig.from_file(path, environ={})

    assert list(config.tools.openapi) == ["pets"]
    assert OpenAPIPins.load(config.tools.openapi_pins).of("pets") == {}
