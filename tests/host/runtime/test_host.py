"""The host: a configuration, opened, and one way for every call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest

from toolcell.core import ConfigError, InvalidInputError, PolicyError
from toolcell.guard import AgentPolicy, Approve, AuditLog, verify_audit
from toolcell.host import Host, HostConfig
from toolcell.tools import RunContext

from ...support.guard.redis_server import RedisServer

pytestmark = pytest.mark.anyio

CONFIG = """
[sandbox]
backend = "subprocess"
[tools]
builtin = ["arithmetic", "clock", "code"]
[state]
folder = "state"
[audit]
path = "audit.jsonl"
[[policies]]
agent_id = "a"
allow = ["calculate", "run_python"]
budgets = [{ unit = "calls", limit = 2, window = "run" }]
[[policies]]
agent_id = "b"
allow = ["get_today_date"]
ask = ["calculate"]
"""
SUM = {"expression": "6 * 7"}
RUN = RunContext(run_id="r")


def written(folder: Path, text: str = CONFIG) -> Path:
    path = folder / "toolcell.toml"
    path.write_text(text)
    return path


async def test_one_task_opens_a_host_and_another_closes_it(tmp_path: Path) -> None:
    config = HostConfig.from_file(written(tmp_path), environ={})
    hosts: list[Host] = []

    async def open_it() -> None:
        hosts.append(await Host.open(config, environ={}))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(open_it)
    [host] = hosts
    result = await host.call("calculate", SUM, agent_id="a", run=RUN)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(host.aclose)

    assert result.content == 42
    with pytest.raises(InvalidInputError, match="not open"):
        await host.call("calculate", SUM, agent_id="a")


async def test_a_call_goes_the_whole_way(tmp_path: Path) -> None:
    async with Host.from_config(written(tmp_path), environ={}) as host:
        result = await host.call(
            "run_python", {"code": "print(6 * 7)"}, agent_id="a", run=RUN
        )
        [record] = host.executor.records.all_records()

    assert (result.status, result.error) == ("ok", None)
    assert isinstance(result.content, dict)
    assert result.content["stdout"] == "42\n"
    assert (record.verdict, record.backend) == ("allowed", "subprocess")
    report = verify_audit(tmp_path / "audit.jsonl")
    assert (report.ok, report.records) == (True, 2)


async def test_an_agent_sees_and_calls_what_its_policy_allows(tmp_path: Path) -> None:
    async with Host.from_config(written(tmp_path), environ={}) as host:
        seen = {name: {tool.name for tool in host.tools(name)} for name in "abc"}
        hidden = await host.call("get_today_date", agent_id="a", run=RUN)
        stranger = await host.call("calculate", SUM, agent_id="c")

    assert seen == {
        "a": {"calculate", "run_python"},
        "b": {"get_today_date", "calculate"},
        "c": set(),
    }
    for result in (hidden, stranger):
        assert result.error is not None
        assert result.error.kind == "tool.not_found"


async def test_limits_outlive_the_host(tmp_path: Path) -> None:
    path = written(tmp_path)
    statuses = []
    for _ in range(3):
        async with Host.from_config(path, environ={}) as host:
            result = await host.call("calculate", SUM, agent_id="a", run=RUN)
            statuses.append(result.status)

    assert statuses == ["ok", "ok", "denied"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("loss", ["removed", "emptied"])
@pytest.mark.promise("C11")
async def test_lost_counters_are_told_at_the_start(
    tmp_path: Path, loss: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path, CONFIG + '[logging]\nformat = "none"\n')
    for _ in range(2):
        async with Host.from_config(path, environ={}) as host:
            await host.call("calculate", SUM, agent_id="a", run=RUN)
    assert "begin anew" not in caplog.text
    for file in (tmp_path / "state").glob("guard.db*"):
        file.unlink()
    if loss == "emptied":
        (tmp_path / "state/guard.db").touch()
    async with Host.from_config(path, environ={}):
        assert "budgets and rate limits begin anew" in caplog.text


@pytest.mark.promise("C11")
async def test_acts_of_operators_are_no_lost_counters(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A token is made before the first start, which is when guard.db is made."""
    path = written(tmp_path, CONFIG + '[logging]\nformat = "none"\n')
    with AuditLog(tmp_path / "audit.jsonl") as log:
        log.append("token_created", agent="a")
    async with Host.from_config(path, environ={}):
        assert "begin anew" not in caplog.text


async def test_the_same_call_is_made_once(tmp_path: Path) -> None:
    async with Host.from_config(written(tmp_path), environ={}) as host:
        asked: dict[str, Any] = {"agent_id": "a", "call_id": "1", "run": RUN}
        first = await host.call("calculate", SUM, **asked)
        again = await host.call("calculate", SUM, **asked)
        left = await host.guard.remaining("a", "calculate")
        records = host.executor.records.all_records()

    assert first.content == again.content == 42
    assert sorted(record.replayed for record in records) == [False, True]
    # Who asks without a run is not told of limits by run.
    assert left == {}


async def test_a_person_answers_in_another_host(tmp_path: Path) -> None:
    path = written(tmp_path)
    results = []

    async def agent() -> None:
        async with Host.from_config(path, environ={}) as host:
            results.append(await host.call("calculate", SUM, agent_id="b"))

    async with (
        Host.from_config(path, environ={}) as desk,
        anyio.create_task_group() as tasks,
    ):
        tasks.start_soon(agent)
        while not (waiting := await desk.approvals.pending()):
            await anyio.sleep(0.01)
        await desk.approvals.answer(waiting[0].id, Approve(approver="anna"))

    assert [result.content for result in results] == [42]
    events = [
        json.loads(line)["event"]
        for line in (tmp_path / "audit.jsonl").read_text().splitlines()
    ]
    assert {"approval_asked", "approval_answered", "approval_used"} <= set(events)


async def test_nobody_can_be_asked_where_state_is_in_memory(tmp_path: Path) -> None:
    text = CONFIG.replace('folder = "state"', "")
    async with Host.from_config(written(tmp_path, text), environ={}) as host:
        result = await host.call("calculate", SUM, agent_id="b")

    assert result.status == "denied"
    assert result.error is not None
    assert result.error.details["reason"] == "approval_unavailable"


async def test_approval_without_people_is_for_development(tmp_path: Path) -> None:
    text = f'profile = "development"\n{CONFIG}\n[approvals]\nauto_approve = "ci"'
    async with Host.from_config(written(tmp_path, text), environ={}) as host:
        result = await host.call("calculate", SUM, agent_id="b")

    assert result.content == 42


async def test_tools_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "own_tools.py").write_text(
        "from toolcell.tools import tool\n\n\n"
        "def shout(text: str) -> str:\n"
        '    """Shout."""\n'
        "    return text.upper()\n\n\n"
        "@tool(sandboxed=True)\ndef where() -> int:\n"
        '    """Say where."""\n    import os\n    return os.getpid()\n\n\n'
        "both = [shout, where]\n"
    )
    text = """
    [sandbox]
    backend = "subprocess"
    [tools]
    python = ["own_tools:both"]
    folders = ["lib"]
    [[policies]]
    agent_id = "a"
    allow = ["*"]
    """
    async with Host.from_config(written(tmp_path, text), environ={}) as host:
        loud = await host.call("shout", {"text": "hey"}, agent_id="a")
        inside = await host.call("where", agent_id="a")
        assert host.sandbox is not None

    assert loud.content == "HEY"
    assert inside.usage["cpu_ms"] is not None
    assert inside.status == "ok"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module_of_ours:tool", "cannot be imported"),
        ("json:no_such_name", "json has no no_such_name"),
        ("json:dumps", "dumps takes any number"),
    ],
)
async def test_tools_that_cannot_be_had(path: str, why: str) -> None:
    config = HostConfig.model_validate({"tools": {"python": [path]}})
    with pytest.raises(ConfigError, match=why):
        async with Host(config, environ={}):
            pass


async def test_no_cell_is_made_where_no_tool_needs_one() -> None:
    # No such engine answers, so opening a sandbox would fail.
    sandbox = {"backend": "docker", "docker_host": "tcp://127.0.0.1:9"}
    plain = {"sandbox": sandbox, "tools": {"builtin": ["arithmetic"]}}
    async with Host(HostConfig.model_validate(plain), environ={}) as host:
        assert host.sandbox is None


async def test_a_host_is_used_while_it_is_open(tmp_path: Path) -> None:
    host = Host(HostConfig(), environ={})
    with pytest.raises(InvalidInputError, match="not open"):
        await host.call("calculate", SUM, agent_id="a")
    async with host:
        with pytest.raises(InvalidInputError, match="open already"):
            await host.__aenter__()
    with pytest.raises(InvalidInputError, match="not open"):
        host.tools("a")
    async with host:
        assert host.tools("a") == []


async def test_policies_come_from_files_too(tmp_path: Path) -> None:
    (tmp_path / "more.toml").write_text('[[policies]]\nagent_id = "c"\nallow = ["*"]')
    text = f'policy_files = ["more.toml"]\n{CONFIG}'
    async with Host.from_config(written(tmp_path, text), environ={}) as host:
        result = await host.call("calculate", SUM, agent_id="c")
    assert result.content == 42

    (tmp_path / "more.toml").write_text('[[policies]]\nagent_id = "a"')
    with pytest.raises(PolicyError, match="two policies are of agent 'a'"):
        async with Host.from_config(tmp_path / "toolcell.toml", environ={}):
            pass


@pytest.mark.promise("E-108")
async def test_secrets_of_the_configuration_are_told_nowhere(tmp_path: Path) -> None:
    key = "canary-canary-canary"
    text = f"{CONFIG}\n".replace(
        'path = "audit.jsonl"', 'path = "audit.jsonl"\nkey = "env:KEY"'
    )
    async with Host.from_config(written(tmp_path, text), environ={"KEY": key}) as host:
        result = await host.call(
            "run_python", {"code": f"print({key!r})"}, agent_id="a", run=RUN
        )
        records = host.executor.records.all_records()
        assert key not in repr(host.config)

    assert result.status == "ok"
    assert key not in repr(records)
    assert key not in (tmp_path / "audit.jsonl").read_text()
    assert verify_audit(tmp_path / "audit.jsonl", key=key.encode()).ok
    assert not verify_audit(tmp_path / "audit.jsonl", key=b"another-key-of-16").ok


async def test_a_bad_url_of_redis_is_not_repeated() -> None:
    url = "http://user:canary-canary@host"
    config = HostConfig.model_validate({"state": {"redis_url": "env:URL"}})
    with pytest.raises(ConfigError, match="env:URL cannot be used") as caught:
        async with Host(config, environ={"URL": url}):
            pass

    assert "canary" not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__suppress_context__) == (None, True)


async def test_counters_in_redis_are_shared(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        text = CONFIG.replace('folder = "state"', 'redis_url = "env:URL"')
        environ = {"URL": server.url}
        statuses = []
        for _ in range(3):
            path = written(tmp_path, text)
            async with Host.from_config(path, environ=environ) as host:
                result = await host.call("calculate", SUM, agent_id="a", run=RUN)
                statuses.append(result.status)
    finally:
        server.kill()

    assert statuses == ["ok", "ok", "denied"]


async def test_a_store_that_is_away_closes_the_host(tmp_path: Path) -> None:
    text = CONFIG.replace('folder = "state"', 'redis_url = "env:URL"')
    environ = {"URL": f"unix://{tmp_path}/none.sock"}
    async with Host.from_config(written(tmp_path, text), environ=environ) as host:
        result = await host.call("calculate", SUM, agent_id="a", run=RUN)

    assert result.status == "denied"
    assert result.error is not None
    assert result.error.kind == "guard.store_unavailable"


async def test_what_fails_to_open_leaves_nothing_open(tmp_path: Path) -> None:
    # Warnings are errors: a file that stays open would be one.
    text = CONFIG.replace('"code"]', '"code", "database"]') + (
        '[tools.database]\npath = "none.db"\n'
    )
    host = Host.from_config(written(tmp_path, text), environ={})
    with pytest.raises(ConfigError, match="there is no database"):
        await host.__aenter__()

    with pytest.raises(InvalidInputError, match="not open"):
        host.tools("a")


def test_a_policy_is_a_model_or_its_fields() -> None:
    policy = AgentPolicy(agent_id="a", allow=["*"])

    assert HostConfig(policies=(policy,)).all_policies() == [policy]


@pytest.mark.promise("RG-42")
def test_the_face_is_lazy() -> None:
    """What programs import is not what commands wait for."""
    script = (
        "import sys, toolcell.host as face\n"
        "before = 'toolcell.guard' in sys.modules\n"
        "from toolcell.host import Host\n"
        "print(before, 'toolcell.guard' in sys.modules, hasattr(face, 'Nothing'))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout.split() == ["False", "True", "False"]
