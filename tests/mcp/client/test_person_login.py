"""A person's login for an MCP server: the browser, the kept tokens, their renewal."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import PIPE
from typing import Any

import anyio
import anyio.to_thread
import httpx2
import pytest

from toolcell.core import ConfigError, ToolcellError, ToolExecutionError, ToolResult
from toolcell.tools import MCPToolset
from toolcell.tools.external import kept_tokens
from toolcell.tools.external.kept_tokens import Tokens
from toolcell.tools.external.login_auth import login_auth, purpose_of
from toolcell.tools.mcp_client.http import LastErrorStatus
from toolcell.tools.spi import KeptTokens, MCPEndpoint, OAuthLogin, log_in

from ...support.child import Child
from ...support.mcp.http_server import Server, serving
from ...support.polling import until
from ...support.sample_tools import call, executor
from ...support.toolcell_command import TOOLCELL, toolcell

pytestmark = pytest.mark.anyio
KEY = b64encode(b"k" * 32).decode()
OTHER_KEY = b64encode(b"o" * 32).decode()
LOGIN_AGAIN = "toolcell tools login desk"
OLD = Tokens(access="old-access", refresh="refresh-0")


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        server.released.set()
        server.token = "fresh-access"
        yield server
        server.may_renew.set()


@pytest.fixture
def kept(tmp_path: Path) -> KeptTokens:
    return KeptTokens(file=tmp_path / "mcp_logins" / "desk", key=KEY)


def login_at(server: Server, kept: KeptTokens) -> OAuthLogin:
    return OAuthLogin(issuer=server.origin, client_id="me", kept=kept)


def toolset_at(server: Server, kept: KeptTokens) -> MCPToolset:
    endpoint = MCPEndpoint(url=server.url, login=login_at(server, kept))
    return MCPToolset("test", endpoint, pins=None)


async def keep(server: Server, kept: KeptTokens, tokens: Tokens = OLD) -> None:
    async with kept.locked():
        kept.write(tokens, purpose_of(login_at(server, kept), server.url, kept))


async def echo(toolset: MCPToolset, call_id: str = "1") -> ToolResult:
    return await executor(*toolset.tools).call(
        call("test__echo", call_id), raise_on_error=False
    )


def visit(url: str) -> int:
    """Return the status of the answer to a browser."""
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            status: int = answer.status
            return status
    except urllib.error.HTTPError as error:
        return error.code


async def log_in_by(
    server: Server, kept: KeptTokens, browse: Callable[[str], object], **options: Any
) -> None:
    """Log in; `browse` is what the browser does with the address, in a thread."""
    async with anyio.create_task_group() as tasks:

        def show(address: str) -> None:
            tasks.start_soon(anyio.to_thread.run_sync, browse, address)

        try:
            await log_in(login_at(server, kept), kept, server.url, show, **options)
        except ToolcellError as error:
            failure = error
        else:
            return
    raise failure


async def test_a_person_logs_in_and_calls_have_the_tokens(
    server: Server, kept: KeptTokens
) -> None:
    statuses: list[int] = []
    await log_in_by(
        server, kept, lambda address: statuses.append(visit(server.authorize(address)))
    )
    async with toolset_at(server, kept) as toolset:
        assert (await echo(toolset, "1")).ok
        server.token = "second-access"
        assert (await echo(toolset, "2")).ok

    [first, second] = server.asked
    assert statuses == [200]
    assert first["resource"] == second["resource"] == [server.url]
    assert second["refresh_token"] == ["refresh-1"]
    purpose = purpose_of(login_at(server, kept), server.url, kept)
    expected = Tokens(access="second-access", refresh="refresh-2")
    assert kept.read(purpose) == expected
    assert kept.file.stat().st_mode & 0o777 == 0o600
    assert b"access" not in kept.file.read_bytes()
    for secret in ("second-access", "refresh-2", KEY):
        assert secret not in repr((kept, expected))


async def test_what_another_page_sends_is_no_answer(
    server: Server, kept: KeptTokens
) -> None:
    statuses: list[int] = []

    def browse(address: str) -> None:
        stolen = server.authorize(address, state="guessed")
        right = server.authorize(address)
        odd = [
            stolen,
            server.authorize(address, state=""),
            f"{right}&code=code-0",
            f"{right}&state=guessed",
            right.replace("/callback", "/other"),
            right.replace("?", "/?"),
        ]
        statuses.extend(visit(url) for url in [*odd, right.replace("iss=", "x=")])

    await log_in_by(server, kept, browse)

    assert statuses == [400] * 6 + [200]
    assert [fields["code"] for fields in server.asked] == [["code-1"]]


@pytest.mark.parametrize(
    ("changes", "metadata", "reason"),
    [
        ({"iss": "https://other.test"}, {}, "is not of http"),
        (
            {"iss": ""},
            {"authorization_response_iss_parameter_supported": True},
            "not of",
        ),
        ({"code": "", "error": "access_denied"}, {}, "refused it: access_denied"),
        ({"code": "", "error": "\x1b[2J"}, {}, "refused it: without a reason"),
        ({"code": "code-of-others"}, {}, "no token .HTTP status 400"),
    ],
)
async def test_an_answer_that_the_issuer_did_not_give_is_refused(
    server: Server,
    kept: KeptTokens,
    changes: dict[str, str],
    metadata: dict[str, Any],
    reason: str,
) -> None:
    server.described |= metadata
    with pytest.raises(ToolExecutionError, match=reason):
        await log_in_by(
            server, kept, lambda address: visit(server.authorize(address, **changes))
        )
    assert not kept.file.exists()


@pytest.mark.parametrize(
    ("member", "value", "reason"),
    [
        ("code_challenge_methods_supported", ["plain"], "PKCE with S256"),
        ("code_challenge_methods_supported", None, "PKCE with S256"),
        ("code_challenge_methods_supported", "S256", "PKCE with S256"),
        ("authorization_endpoint", "javascript://localhost/%0aalert(1)", "no author"),
        ("authorization_endpoint", "http://login.test/", "no authorization endpoint"),
        ("authorization_endpoint", "https://[", "does not answer as it should"),
        ("token_endpoint", "http://login.test/", "no token endpoint"),
        ("issuer", "https://other.test", "no metadata of that issuer"),
    ],
)
async def test_nobody_is_sent_where_a_login_could_be_stolen(
    server: Server, kept: KeptTokens, member: str, value: Any, reason: str
) -> None:
    server.described[member] = value
    shown: list[str] = []
    with pytest.raises(ToolExecutionError, match=reason):
        login = login_at(server, kept)
        await log_in(login, kept, server.url, shown.append, seconds=0.01)
    assert not shown


async def test_a_code_is_not_sent_on_to_another_place(
    server: Server, kept: KeptTokens
) -> None:
    with serving() as other:
        server.moved, server.elsewhere = True, f"{other.origin}/token"
        with pytest.raises(ToolExecutionError, match=r"no token .HTTP status 307"):
            await log_in_by(server, kept, lambda it: visit(server.authorize(it)))
    assert (len(server.asked), other.seen) == (1, [])


async def test_answers_without_end_or_sense_are_given_up(
    server: Server, kept: KeptTokens
) -> None:
    for odd in ("x" * 100_000, "a\nb"):
        server.token = odd
        with pytest.raises(ToolExecutionError, match="no one is logged in"):
            await log_in_by(server, kept, lambda it: visit(server.authorize(it)))
    assert not kept.file.exists()


async def test_a_person_who_does_not_come_back_is_not_awaited(
    server: Server, kept: KeptTokens
) -> None:
    with pytest.raises(ToolExecutionError, match=r"nobody came back within 0\.01 sec"):
        await log_in_by(server, kept, lambda address: None, seconds=0.01)


async def test_two_hosts_that_renew_at_once_lose_no_token(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    async with toolset_at(server, kept) as one, toolset_at(server, kept) as other:
        server.token = "second-access"
        server.may_renew.clear()
        server.asked.clear()
        server.seen.clear()
        results = []

        async def ask(toolset: MCPToolset) -> None:
            results.append(await echo(toolset))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, one)
            tasks.start_soon(ask, other)
            await until(lambda: [path for _, path, _ in server.seen].count("/mcp") == 2)
            await until(lambda: bool(server.asked))
            server.may_renew.set()

    assert [result.ok for result in results] == [True, True]
    assert [fields["refresh_token"] for fields in server.asked] == [["refresh-1"]]


async def test_a_token_that_came_for_a_cancelled_request_is_kept(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    server.may_renew.clear()
    login = login_at(server, kept)
    auth = login_auth(login, server.url, lambda failure: None)
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

    async def ask() -> None:
        async with httpx2.AsyncClient(auth=auth, timeout=60) as client:
            await client.post(server.url, json=ping)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ask)
        await until(lambda: bool(server.asked))
        tasks.cancel_scope.cancel()
        server.may_renew.set()

    expected = Tokens(access="fresh-access", refresh="refresh-1")
    assert kept.read(purpose_of(login, server.url, kept)) == expected


async def test_a_login_that_is_missing_or_dead_says_how_to_log_in(
    server: Server, kept: KeptTokens
) -> None:
    with pytest.raises(ToolExecutionError, match="no one is logged in") as missing:
        async with toolset_at(server, kept):
            pass
    assert LOGIN_AGAIN in (missing.value.hint or "")

    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        server.token, server.refuses = "second-access", True
        dead = await echo(toolset)
    assert dead.error is not None
    assert LOGIN_AGAIN in (dead.error.hint or "")
    assert "outcome" not in dead.error.details
    for secret in ("fresh-access", "refresh-1", KEY):
        assert secret not in f"{missing.value}{dead.error}"


async def test_an_answer_to_another_call_hides_no_failed_login(
    server: Server, kept: KeptTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As if the other answer came before the error of this call.
    monkeypatch.setattr(LastErrorStatus, "note_login", lambda *_: None)
    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        await kept.forget()
        lost = await echo(toolset)

    assert lost.error is not None
    assert LOGIN_AGAIN in (lost.error.hint or "")
    assert not server.called


async def test_no_server_can_say_that_a_call_was_not_sent(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        refused = await executor(*toolset.tools).call(
            call("test__unsent"), raise_on_error=False
        )

    assert server.called == ["unsent"]
    assert refused.error is not None
    assert "refused the call" in refused.error.message
    assert LOGIN_AGAIN not in (refused.error.hint or "")


async def test_an_issuer_in_trouble_ends_no_login(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        server.token, server.moved = "second-access", True
        late = await echo(toolset)
        assert late.error is not None
        assert LOGIN_AGAIN not in (late.error.hint or "")
        server.moved = False
        assert (await echo(toolset)).ok


async def test_who_logs_out_ends_the_login_of_hosts_that_run(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        assert (await echo(toolset, "1")).ok
        assert await kept.forget()
        lost = await echo(toolset, "2")
    assert server.called == ["echo"]
    assert lost.error is not None and LOGIN_AGAIN in (lost.error.hint or "")
    assert not await kept.forget()


async def test_calls_without_a_token_end_no_other_call(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    server.released.clear()
    results = []

    async def wait(toolset: MCPToolset) -> None:
        never = call("test__never", "0")
        results.append(await executor(*toolset.tools).call(never, raise_on_error=False))

    async with toolset_at(server, kept) as toolset:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(wait, toolset)
            await until(lambda: "never" in server.called)
            await kept.forget()
            lost = [await echo(toolset, f"{number}") for number in (1, 2)]
            server.released.set()

    assert [each.ok for each in [*lost, *results]] == [False, False, True]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.ENOLCK])
async def test_no_token_is_asked_for_that_could_not_be_kept(
    server: Server, kept: KeptTokens, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fails(*_: Any) -> Any:
        raise OSError(number, os.strerror(number))

    await keep(server, kept)
    async with toolset_at(server, kept) as toolset:
        server.token = "second-access"
        server.asked.clear()
        with monkeypatch.context() as broken:
            if number == errno.ENOSPC:
                broken.setattr(kept_tokens, "written_whole", fails)
            else:
                broken.setattr(fcntl, "flock", fails)
            full = await echo(toolset, "1")
        assert full.error is not None
        assert "as the user of the host" in (full.error.hint or "")
        assert not server.asked
        assert (await echo(toolset, "2")).ok


async def test_a_folder_of_another_user_is_not_used(
    server: Server, kept: KeptTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.file.parent.mkdir()
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ConfigError, match="of another user"):
        await log_in(login_at(server, kept), kept, server.url, pytest.fail)
    assert not server.seen
    assert not [*kept.file.parent.iterdir()]


async def test_tokens_are_read_for_their_purpose_with_their_key_alone(
    server: Server, kept: KeptTokens, monkeypatch: pytest.MonkeyPatch
) -> None:
    await keep(server, kept)
    login = login_at(server, kept)
    purpose = purpose_of(login, server.url, kept)
    other_places = [
        purpose_of(login, "https://other.test/mcp", kept),
        purpose_of(replace(login, issuer="https://other.test"), server.url, kept),
        purpose_of(replace(login, client_id="other"), server.url, kept),
        purpose_of(login, server.url, kept.of_agent("ann")),
    ]
    odd_key = replace(kept, key=OTHER_KEY)
    for place, about in [(odd_key, purpose), *((kept, each) for each in other_places)]:
        with pytest.raises(ConfigError, match="of another key, issuer") as refused:
            place.read(about)
        assert LOGIN_AGAIN in (refused.value.hint or "")

    assert kept.read(purpose) == OLD
    sealed = kept.file.read_bytes()
    for changed in (b"", sealed[:-1], sealed[:-1] + bytes([sealed[-1] ^ 1])):
        kept.file.write_bytes(changed)
        with pytest.raises(ConfigError, match="or was changed"):
            kept.read(purpose)

    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    with pytest.raises(ConfigError, match="of another user"):
        kept.read(purpose)


async def test_tokens_are_not_read_through_a_link(
    server: Server, kept: KeptTokens
) -> None:
    await keep(server, kept)
    kept.file.rename(kept.file.with_suffix(".moved"))
    kept.file.symlink_to(kept.file.with_suffix(".moved"))
    with pytest.raises(ConfigError, match="cannot be used"):
        kept.read(purpose_of(login_at(server, kept), server.url, kept))


@pytest.mark.parametrize("key", ["", "hunter2", b64encode(b"short").decode(), "\udcff"])
async def test_a_person_is_not_asked_in_vain(
    server: Server, kept: KeptTokens, key: str
) -> None:
    with pytest.raises(ConfigError, match="32 bytes in base64") as refused:
        await log_in_by(
            server, replace(kept, key=key), lambda address: None, seconds=0.01
        )
    assert not server.seen
    assert "hunter2" not in str(refused.value)


def test_the_command_logs_in_and_out(server: Server, tmp_path: Path) -> None:
    config = tmp_path / "toolcell.toml"
    config.write_text(
        f"state.folder = 'state'\n[tools.mcp.desk]\nurl = '{server.url}'\n"
        f"[tools.mcp.desk.login]\nissuer = '{server.origin}'\nclient_id = 'me'\n"
        "grant = 'authorization_code'\nkey = 'file:key'\n"
    )
    (tmp_path / "key").write_text(KEY)
    arguments = ("desk", "--config", str(config))
    of_agent = ("--agent", "ann")
    command = [TOOLCELL, "tools", "login", *arguments, *of_agent]
    with Child(command, stdout=PIPE, stderr=PIPE, text=True) as running:
        assert running.stderr is not None
        [address] = re.findall("http.*", running.stderr.readline())
        assert visit(server.authorize(address)) == 200
        out, errors = running.communicate(timeout=240)

    assert (running.returncode, out, errors) == (0, "desk: logged in\n", "")
    place = tmp_path / "state" / "mcp_logins" / "desk"
    kept = KeptTokens(file=place, key=KEY).of_agent("ann")
    found = kept.read(purpose_of(login_at(server, kept), server.url, kept))
    assert found == Tokens(access="fresh-access", refresh="refresh-1")
    # A login ends without its secrets, too.
    (tmp_path / "key").unlink()
    ends = ((), b"desk: nobody was logged in\n"), (of_agent, b"desk: logged out\n")
    for who, expected in ends:
        assert toolcell("tools", "logout", *arguments, *who).stdout == expected
    assert not kept.file.exists()
