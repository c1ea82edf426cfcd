"""Credentials: programs use them and never have them, on every backend."""

from __future__ import annotations

import base64
import html
import json
import os
import re
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import h11
import pytest

from toolcell.core import AuditError, ConfigError
from toolcell.sandbox import Limits, Network, SandboxConfig, SandboxManager, Session
from toolcell.sandbox.config.credentials import Credential
from toolcell.sandbox.credentials.agents import (
    AgentCredentials,
    Credentials,
    MisplacedError,
    UnreadableError,
)
from toolcell.sandbox.credentials.masking import Mask, spellings
from toolcell.sandbox.spi import NetworkAct

from ...conftest import BackendRow
from ...support.cells.gates import Gate
from ...support.cells.mirror import Mirror, mirroring
from ...support.cells.web_server import NAME, resolve_here

pytestmark = pytest.mark.anyio

VALUE = f"ghp_{secrets.token_hex(4)}/of+the=host{secrets.token_hex(4)}"
OTHER = "other.example.test"


@pytest.fixture(scope="module")
def plain() -> Iterator[type[Mirror]]:
    with mirroring(None, VALUE) as handler:
        yield handler


def configured(
    backend: BackendRow, port: int, certificate: Path, value: str, plain: int
) -> SandboxConfig:
    hosts = [f"{NAME}:{port}", f"{OTHER}:{port}"]
    open_hosts = f"{OTHER}:{plain}", f"127.0.0.1:{port}", f"127.0.0.1:{plain}"
    network = Network(
        mode="guarded",
        hosts=(*hosts, *open_hosts),
        inspect=tuple(hosts),
        server_ca=str(certificate),
    )
    credential = {
        "name": "github",
        "value": value,
        "hosts": hosts[:1],
        "agents": ["builder"],
        "variable": "GITHUB_TOKEN",
        "prefix": "ghp_",
        "where": ["header:Authorization", "basic", "query:key"],
    }
    return backend.config(
        network=network, credentials=(credential,), limits=Limits(wall_seconds=60)
    )


@pytest.fixture(scope="module")
async def manager(
    backend: BackendRow,
    mirror: Any,
    plain: Any,
    certificate: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[SandboxManager]:
    file = tmp_path_factory.mktemp("secret") / "token"
    file.write_text(VALUE + "\n")
    value = f"file:{file}"
    config = configured(backend, mirror.port, certificate, value, plain.port)
    async with SandboxManager(config, resolver=resolve_here) as manager:
        yield manager


@pytest.fixture
async def cell(manager: SandboxManager, mirror: Any) -> AsyncIterator[Session]:
    mirror.heads.clear()
    async with manager.session(agent_id="builder") as session:
        yield session


SEND = """
import base64, json, os, sys, urllib.error, urllib.parse, urllib.request
port, token = sys.argv[1], os.environ["GITHUB_TOKEN"]
def send(path, host="api.example.test", data=None, **headers):
    url = f"https://{host}:{port}{path}"
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    request = urllib.request.Request(url, data, named)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, f"{answer.reason} {answer.headers} ", answer.read()
    except urllib.error.HTTPError as error:
        refusal = error.headers["X-Toolcell-Refusal"] or ""
        return error.code, refusal, error.read().decode()
def code(text):
    return base64.b64encode(text.encode()).decode()
"""


async def said(cell: Session, code: str, mirror: Any, gate: Gate) -> list[str]:
    argv = ["python3", "-c", SEND + code, str(mirror.port)]
    result = await (await cell.exec(argv, gate=gate)).wait()
    assert result.status == "ok", result.stderr
    assert VALUE not in result.stdout
    return result.stdout.splitlines()


@pytest.mark.promise("boundary-6")
async def test_a_value_is_written_where_it_may_be(cell: Session, mirror: Any) -> None:
    gate = Gate()
    code = """
print(token.startswith("ghp_"), len(token))
send("/bearer", Authorization=f"Bearer {token}", Range="bytes=0-3")
send("/basic", Authorization="Basic " + code(f"x:{token}"))
send("/query?a=1&key=" + token)
send("/nothing", Range="bytes=0-3")
"""
    assert await said(cell, code, mirror, gate) == [f"True {len(VALUE)}"]

    bearer, basic, query, nothing = mirror.heads
    assert f"Bearer {VALUE}\n" in bearer
    assert base64.b64encode(f"x:{VALUE}".encode()).decode() in basic
    assert f"key={quote(VALUE, safe='')} " in query.replace("\n", " ")
    assert not any("Range" in each for each in (bearer, nothing))
    used = [outcome.get("used") for outcome in gate.outcomes]
    assert used == [["github"]] * 3 + [None]
    assert VALUE not in repr((gate.asked, gate.outcomes))


@pytest.mark.promise("boundary-6")
async def test_a_placeholder_anywhere_else_is_refused(
    cell: Session, mirror: Any
) -> None:
    gate = Gate()
    code = """
for options in (
    {"path": "/" + token},
    {"path": "/?other=" + token},
    {"path": "/?" + token + "=1"},
    {"path": "/" + "".join("%%%02x" % ord(each) for each in token)},
    {"path": "/%67" + token[1:]},
    {"path": "/", "X_Other": token},
    {"path": "/", "Cookie": "a=" + code("ab" + token)},
    {"path": "/", "Authorization": "Bearer " + token, "host": "other.example.test"},
    {"path": "/", "Authorization": "Basic " + code(f"x{token}:y")},
    {"path": "/", "data": b"x" * 1_000_000 + token.encode()},
    {"path": "/", "data": json.dumps({"a": code("a" + token)}).encode()},
):
    status, refusal, text = send(**options)
    print(status, refusal, "no other way" in text)
"""
    expected = ["403 credential_misplaced True"] * 11
    assert await said(cell, code, mirror, gate) == expected
    assert mirror.heads == []
    assert len(gate.asked) == 2, "bodies alone come after a request was judged"
    assert gate.unplaced_reasons == ["credential_misplaced"] * 9


class FullDisk(Gate):
    """A gate that can record nothing."""

    async def unplaced(self, act: NetworkAct, reason: str, message: str) -> None:
        raise AuditError("no space left")


@pytest.mark.promise("boundary-6")
async def test_a_refusal_that_cannot_be_recorded_is_logged(
    cell: Session, mirror: Any, caplog: pytest.LogCaptureFixture
) -> None:
    code = 'print(token, *send("/" + token)[:2])'
    [line] = await said(cell, code, mirror, FullDisk())

    token, *refusal = line.split()
    assert refusal == ["403", "credential_misplaced"]
    assert "a refused http.request is not recorded: no space left" in caplog.text
    assert token not in caplog.text


@pytest.mark.promise("boundary-6")
async def test_an_answer_that_shows_a_value_shows_the_placeholder(
    cell: Session, mirror: Any
) -> None:
    code = """
for path in ("/plain", "/pieces", "/base64", "/hex", "/gzip", "/piece"):
    status, head, body = send(path, Authorization="Bearer " + token)
    print(status, head.count(token), body.strip() if status == 502 else len(body))
print(send("/value", host="other.example.test")[2] == token.encode())
print(send("/plain", Authorization="Bearer " + token)[2] == token.encode())
print(send("/piece")[0], send("/gzip")[0])
"""
    told = (
        "toolcell: the server's answer is compressed, or a piece, and cannot be "
        "searched for credentials"
    )
    size = len(VALUE)
    assert [each for each in await said(cell, code, mirror, Gate()) if each] == [
        f"200 2 {size}",
        f"200 2 {size}",
        f"200 2 {len(base64.b64encode(bytes(size + 2)))}",
        f"200 2 {size * 2}",
        f"502 0 {told}",
        f"502 0 {told}",
        "True",
        "True",
        "502 502",
    ]


@pytest.mark.promise("boundary-6")
async def test_an_answer_in_the_clear_shows_the_placeholder(
    cell: Session, mirror: Any, plain: Any
) -> None:
    code = f"""
url = "http://{OTHER}:{plain.port}/"
headers = {{"Range": "bytes=0-3", "Accept-Encoding": "gzip"}}
request = urllib.request.Request(url + "value", None, headers)
print(urllib.request.urlopen(request).read() == token.encode())
shows = urllib.request.Request(url + "pieces", headers={{"Authorization": "{VALUE}"}})
print(urllib.request.urlopen(shows).read() == token.encode())
for path in ("gzip", "piece"):
    try:
        urllib.request.urlopen(url + path)
    except OSError as error:
        print("broken off")
"""
    plain.heads.clear()
    told = await said(cell, code, mirror, Gate())
    assert told == ["True", "True", "broken off", "broken off"]
    assert not {"Range", "gzip"} & {*plain.heads[0].replace(":", "").split()}


@pytest.mark.promise("boundary-6")
async def test_a_value_that_changed_is_used_for_the_next_request(
    backend: BackendRow,
    mirror: Any,
    plain: Any,
    certificate: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    file, fresh = tmp_path / "token", f"ghp_{secrets.token_hex(30)}"
    file.write_text(VALUE)
    value = f"file:{file}"
    config = configured(backend, mirror.port, certificate, value, plain.port)
    ask = """
status, told, body = send("/plain", Authorization="Bearer " + token)
hidden = send("/value")[2] == token.encode()
print(status, token in told or told, hidden)
"""
    mirror.heads.clear()
    async with (
        SandboxManager(config, resolver=resolve_here) as manager,
        manager.session(agent_id="builder") as cell,
    ):
        found = []
        for secret in (VALUE, fresh, "short", None, fresh):
            file.unlink(missing_ok=True)
            if secret is not None:
                file.write_text(secret)
            found += await said(cell, ask, mirror, Gate())

    lost = "403 credential_unreadable True"
    assert found == ["200 True True"] * 2 + [lost] * 2 + ["200 True True"]
    sent = [head for head in mirror.heads if "/plain" in head]
    assert [f"Bearer {VALUE}\n" in head for head in sent] == [True, False, False]
    assert [f"Bearer {fresh}\n" in head for head in sent] == [False, True, True]
    assert caplog.text.count("the credential github: ") == 2
    assert fresh not in caplog.text


@pytest.mark.promise("boundary-6")
def test_answers_on_their_way_are_searched_for_a_new_value(tmp_path: Path) -> None:
    file, old, new = tmp_path / "token", b"old-" * 10, b"new-" * 20
    file.write_bytes(old)
    mask = programs_with(file).mask()

    shown = mask.next(b"begun ")
    file.write_bytes(new)
    shown += mask.next(old + b" " + new) + mask.end()
    assert shown.startswith(b"begun ")
    assert len(shown) == len(b"begun " + old + b" " + new)
    assert old not in shown
    assert new not in shown


def programs_with(file: Path) -> AgentCredentials:
    rule = Credential(
        name="one",
        value=f"file:{file}",
        hosts=("a.test:443",),
        agents=("a",),
        variable="ONE",
    )
    programs = Credentials([rule]).of("a")
    assert programs is not None
    return programs


def sent_by(programs: AgentCredentials) -> str:
    token = f"Bearer {programs.variables['ONE']}"
    headers = [("Host", "a.test"), ("Authorization", token)]
    head = h11.Request(method="GET", target="/", headers=headers)
    made, _ = programs.placed(head, ("a.test", 443))
    return dict(made.headers)[b"authorization"].decode()


@pytest.mark.promise("boundary-6")
def test_a_placeholder_in_pieces_is_found_in_a_body(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(VALUE)
    programs = programs_with(file)
    *first, last = (b"%c" % each for each in programs.variables["ONE"].encode())

    check = programs.body_check()
    for piece in (b"token=", *first):
        check(piece)
    with pytest.raises(MisplacedError):
        check(last)


@pytest.mark.promise("boundary-6")
def test_a_file_that_was_away_and_is_back_is_used(tmp_path: Path) -> None:
    file, away = tmp_path / "token", tmp_path / "away"
    file.write_text(VALUE)
    programs = programs_with(file)

    file.rename(away)
    with pytest.raises(UnreadableError):
        sent_by(programs)
    away.rename(file)
    assert sent_by(programs) == f"Bearer {VALUE}"


@pytest.mark.promise("boundary-6")
def test_a_change_is_noticed_that_leaves_size_and_time(tmp_path: Path) -> None:
    file, fresh = tmp_path / "token", VALUE[::-1]
    file.write_text(VALUE)
    programs = programs_with(file)

    was = file.stat()
    file.write_text(fresh)
    while file.stat().st_ctime_ns == was.st_ctime_ns:
        os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    os.utime(file, ns=(was.st_atime_ns, was.st_mtime_ns))
    assert file.stat().st_mtime_ns == was.st_mtime_ns
    assert sent_by(programs) == f"Bearer {fresh}"


@pytest.mark.promise("boundary-6")
def test_a_pipe_in_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(VALUE)
    programs = programs_with(file)

    file.unlink()
    os.mkfifo(file)
    with pytest.raises(UnreadableError):
        sent_by(programs)
    with pytest.raises(ConfigError, match=r"credential one: .* no regular file"):
        programs_with(file)


@pytest.mark.promise("boundary-6")
def test_what_is_kept_back_says_nothing_of_a_value() -> None:
    def sizes(guess: str) -> list[int]:
        mask = Mask({text: b"*" * len(text) for text in spellings(VALUE)})
        pieces = [b"x" * 100, guess.encode(), b"y" * len(VALUE) * 4]
        return [len(mask.next(piece)) for piece in pieces]

    for size in range(len(VALUE) + 1):
        right = VALUE[:size]
        assert sizes(right) == sizes("!" * size)


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    "shown",
    [
        str,
        quote,
        json.dumps,
        html.escape,
        quote_plus,
        lambda text: re.sub("%..", lambda each: each[0].lower(), quote(text)),
        lambda text: json.dumps(text).replace("/", r"\/"),
        lambda text: json.dumps(text).replace("+", r"\u002B"),
        lambda text: json.dumps(text).replace("=", r"\u003d"),
        lambda text: text.encode().hex(),
        lambda text: base64.b64encode(b"a" + text.encode()).decode(),
        lambda text: base64.urlsafe_b64encode(b"ab" + text.encode()).decode(),
    ],
)
def test_a_value_is_hidden_in_its_usual_spellings(shown: Any) -> None:
    value = "abc/def+ghi=jkl:mno-pqr_stu~v.w"
    mask = Mask({text: b"*" * len(text) for text in spellings(value)})

    text = b"a" + shown(value).encode() + b"b"
    hidden = b"".join(mask.next(b"%c" % each) for each in text) + mask.end()
    assert len(hidden) == len(text)
    assert hidden.count(b"*") >= len(value) - 1


@pytest.mark.promise("boundary-6")
async def test_other_agents_have_neither_placeholder_nor_value(
    manager: SandboxManager, cell: Session, mirror: Any
) -> None:
    [token] = await said(cell, "print(token)", mirror, Gate())
    [again] = await said(cell, "print(token)", mirror, Gate())
    code = f"""
import os, urllib.request
url = "https://{NAME}:{mirror.port}/"
request = urllib.request.Request(url, None, {{"Authorization": "Bearer {token}"}})
urllib.request.urlopen(request)
os.environ.get("GITHUB_TOKEN", "none")
"""
    other = await manager.run(code, agent_id="reader", gate=Gate())
    no_one = await manager.run(code, gate=Gate())

    assert again == token
    assert [other.value, no_one.value] == ["none", "none"]
    assert VALUE not in "".join(mirror.heads)


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"hosts": ["a.test:80"]}, "HTTPS alone"),
        ({"hosts": ["b.test:443"]}, "`network.inspect` does not name"),
        ({"where": ["json:/token"]}, "not served"),
        ({"where": ["form:client_secret"]}, "not served"),
        ({"inject": "Bearer {value}"}, "inject"),
        ({"kind": "aws-sigv4"}, "kind"),
        ({"value": str}, "value"),
        ({"where": ["header:Host"]}, "not served"),
        ({"variable": "https_proxy"}, "leads programs to the proxy"),
        ({"variable": "NODE_USE_ENV_PROXY"}, "leads programs to the proxy"),
        ({"variable": "SSL_CERT_FILE"}, "leads programs to the proxy"),
        ({"variable": "WGETRC"}, "leads programs to the proxy"),
        ({"value": "written-here"}, "named, never written"),
        ({"value": "env:NO_SUCH_VARIABLE"}, "the credential github: .*NO_SUCH"),
        ({"value": "file:/no/such"}, "the credential github: .*/no/such"),
        ({"value": "file:/dev/null"}, "the credential github: "),
        ({"value": "env:SHORT"}, "the credential github: .*20 to 4,096"),
        ({"value": "env:QUOTED"}, "the credential github: .*20 to 4,096"),
    ],
)
async def test_a_credential_that_cannot_be_served_is_named_at_the_start(
    settings: dict[str, Any], told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHORT", "short")
    monkeypatch.setenv("QUOTED", '"' * 40)
    network = Network(mode="guarded", inspect=("a.test:443",))
    credential = {
        "name": "github",
        "value": "env:SHORT",
        "hosts": ["a.test:443"],
        "variable": "TOKEN",
    }
    credentials: Any = (credential | settings,)
    with pytest.raises(ConfigError, match=told):
        await SandboxManager.open(
            SandboxConfig(network=network, credentials=credentials)
        )


@pytest.mark.promise("boundary-6")
def test_no_value_is_a_part_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONE", "a" * 30)
    monkeypatch.setenv("TWO", "a" * 31)
    rules = [
        Credential(
            name=each.lower(),
            value=f"env:{each}",
            hosts=("a.test:443",),
            variable=each,
        )
        for each in ("ONE", "TWO")
    ]

    with pytest.raises(ConfigError, match=r"credential one: .* part of that of two"):
        Credentials(rules)
