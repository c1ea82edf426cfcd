"""Policies of a running server change with their files, all of them or none."""

from __future__ import annotations

import json
import logging
import signal
import subprocess
import threading
import tomllib
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from toolcell.core import GuardDeniedError, PolicyError
from toolcell.guard import ActionGuard, AgentPolicy, watch_policies
from toolcell.guard.admission.compiled_policy import CompiledPolicy
from toolcell.host import Host, HostConfig
from toolcell.host.http.tokens import TokenStore
from toolcell.host.runtime.policy_reload import PolicyReloader

from ...support.child import Child
from ...support.guard.builders import FREE, call
from ...support.mcp.served_hosts import CONFIG, SUM, http_client, http_process, written
from ...support.polling import until
from ...support.toolcell_command import TOOLCELL

pytestmark = pytest.mark.anyio

DENIED = CONFIG.replace(
    'allow = ["calculate"', 'deny = ["calculate"]\nallow = ["calculate"'
)


@pytest.fixture
def audited(tmp_path: Path) -> Path:
    return written(tmp_path, '[audit]\npath = "audit.jsonl"\n' + CONFIG)


async def names(client: Client) -> list[str]:
    return [tool.name for tool in (await client.list_tools(cache_mode="refresh")).tools]


def version_of(text: str) -> str:
    """Return the version of the policies of a configuration."""
    config = HostConfig.model_validate(tomllib.loads(text))
    return ActionGuard(config.all_policies()).policy_version


async def sums(host: Host) -> str:
    result = await host.call("calculate", SUM, agent_id="a")
    return result.status


@pytest.mark.promise("JC8")
async def test_stale_policies_are_recorded_and_measured(
    audited: Path, metric_reader: InMemoryMetricReader
) -> None:
    """Also when a broken file is mended by what it had before."""
    config, good = HostConfig.from_file(audited, environ={}), audited.read_text()

    def measured() -> tuple[Any, Any]:
        data = metric_reader.get_metrics_data()
        assert data is not None
        points = {
            metric.name: metric.data.data_points
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }
        [version] = points["toolcell.policies.version"]
        [stale] = points["toolcell.policies.stale"]
        facts = dict(version.attributes or {})
        return getattr(stale, "value", None), facts["toolcell.policy_version"]

    async with Host(config) as host, anyio.create_task_group() as tasks:
        reload = PolicyReloader(
            host.guard, config, audited, audit=host.audit, look_seconds=3600
        )
        tasks.start_soon(reload.watch)
        await anyio.wait_all_tasks_blocked()
        seen = [measured()]
        for text in (good.replace("allow", "alow"), good, DENIED):
            audited.write_text(text)
            await reload.reload()
            seen.append(measured())
        tasks.cancel_scope.cancel()
    log = audited.parent / "audit.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]

    first, other = seen[0][1], version_of(DENIED)
    assert seen == [(0, first), (1, first), (0, first), (0, other)]
    assert [(record["event"], record["version"]) for record in records] == [
        ("policies_stale", first),
        ("policies", first),
        ("policies", other),
    ]
    assert all(record["files"] == [str(audited)] for record in records)
    assert "alow" in records[0]["problem"]


@pytest.mark.promise("N5")
async def test_a_changed_file_is_in_force_once_it_is_whole(
    audited: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = HostConfig.from_file(audited, environ={})
    good = audited.read_text()
    async with Host(config) as host, anyio.create_task_group() as tasks:
        reload = PolicyReloader(host.guard, config, audited, look_seconds=0.005)
        tasks.start_soon(reload.watch)
        assert await sums(host) == "ok"

        async def logged(said: str) -> None:
            await until(lambda: said in caplog.text)
            caplog.clear()

        with caplog.at_level(logging.WARNING):
            version = host.guard.policy_version
            audited.write_text(good.replace("allow", "alow"))
            await logged("policies stay as they are")
            audited.unlink()
            await logged("there is no file")
            assert (host.guard.policy_version, await sums(host)) == (version, "ok")
            audited.write_text(good.replace('["calculate", ', "[") + "[logging]\n")
            await logged("are in force")
            assert await sums(host) != "ok"
            audited.write_text(good + '[logging]\nformat = "json"\n')
            await logged("need a restart")
            assert await sums(host) == "ok"
        tasks.cancel_scope.cancel()
    records = (audited.parent / "audit.jsonl").read_text()
    assert records.count('"event":"policies"') == 2


@pytest.mark.promise("N5")
async def test_files_of_policies_are_watched_as_well(tmp_path: Path) -> None:
    more = tmp_path / "more.toml"
    more.write_text('[[policies]]\nagent_id = "c"\nallow = ["calculate"]\n')
    path = written(tmp_path, f'policy_files = ["more.toml"]\n{CONFIG}')
    config = HostConfig.from_file(path, environ={})
    async with Host(config) as host, anyio.create_task_group() as tasks:
        reload = PolicyReloader(host.guard, config, path, look_seconds=0.005)
        tasks.start_soon(reload.watch)
        more.write_text('[[policies]]\nagent_id = "d"\nallow = ["calculate"]\n')
        await until(lambda: host.guard.may_allow("d", "calculate"))
        assert not host.guard.may_allow("c", "calculate")
        tasks.cancel_scope.cancel()


@pytest.mark.promise("JC7")
async def test_files_that_fit_a_pattern_count_as_soon_as_they_are_there(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    text = 'policy_files = ["more/*.toml", "team[1].toml"]'
    path, folder = written(tmp_path, text), tmp_path / "more"
    config = HostConfig.from_file(path, environ={})
    folder.mkdir()
    (folder / ".#a.toml").symlink_to("anna@desk.4711")  # as Emacs does
    with pytest.raises(PolicyError, match="no file fits"):
        config.all_policies()
    policy = '[[policies]]\nagent_id = "{}"\nallow = ["calculate"]\n'
    (folder / "a.toml").write_text(policy.format("a"))
    (tmp_path / "team[1].toml").write_text(policy.format("team"))
    guard = ActionGuard(config.all_policies())
    assert guard.may_allow("team", "calculate")
    reload = PolicyReloader(guard, config, path, look_seconds=0.005)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reload.watch)
        (folder / "b.toml").write_text(policy.format("b"))
        await until(lambda: guard.may_allow("b", "calculate"))
        tasks.cancel_scope.cancel()
    for name in ("a", "b"):
        (folder / f"{name}.toml").unlink()
    await reload.reload()

    assert "policies stay as they are: no file fits" in caplog.text
    assert guard.may_allow("a", "calculate")


@pytest.mark.promise("P-30")
async def test_a_link_to_where_programs_write_brings_no_policies(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Attack: a program waits until a link leads a pattern to where it may write."""
    mounts = '[[sandbox.mounts]]\nsource = "shared"\ntarget = "/mnt"\nread_only = false'
    head = 'policy_files = ["more/*.toml"]\n[sandbox]\nbackend = "subprocess"\n'
    mounts = mounts.replace("shared", str(tmp_path / "shared"))
    policy = '[[policies]]\nagent_id = "{}"\nallow = ["calculate"]\n'
    for name, agent in (("more", "a"), ("shared", "b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{agent}.toml").write_text(policy.format(agent))
    path = written(tmp_path, head + mounts)
    config = HostConfig.from_file(path, environ={})
    guard = ActionGuard(config.all_policies())
    reload = PolicyReloader(guard, config, path)
    (tmp_path / "more/b.toml").symlink_to("../shared/b.toml")
    # The cells of now have the mount also when the file has it no more.
    for text in (head + mounts, head):
        path.write_text(text)
        caplog.clear()
        await reload.reload()
        assert "would let programs change" in caplog.text
        assert reload.stale and not guard.may_allow("b", "calculate")
    (tmp_path / "more/b.toml").unlink()
    await reload.reload()

    assert not reload.stale and guard.may_allow("a", "calculate")


@pytest.mark.promise("N5")
async def test_sighup_reads_policies_again_over_http(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "state").mkdir()
    with TokenStore(tmp_path / "state" / "tokens.db") as store:
        _, secret = store.create("a")
    with http_process(path) as (url, process):
        async with http_client(url, secret) as client:
            assert "calculate" in await names(client)
            path.write_text(DENIED)
            process.send_signal(signal.SIGHUP)
            with anyio.fail_after(60):
                while "calculate" in await names(client):
                    await anyio.sleep(0.01)
        assert process.poll() is None
        process.terminate()
        assert process.wait(120) == 0


@pytest.mark.promise("N5")
def test_sighup_leaves_a_server_on_standard_input_alive(tmp_path: Path) -> None:
    path = written(tmp_path)
    command = [TOOLCELL, "serve", "--config", str(path)]
    with Child[bytes](
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"not json\n")
        process.stdin.flush()
        assert process.stdout is not None
        assert b"Parse error" in process.stdout.readline()
        path.write_text(CONFIG.replace("policies", "polices"))
        process.send_signal(signal.SIGHUP)
        assert b"policies stay as they are" in process.stderr.readline()
        path.write_text(DENIED)
        process.send_signal(signal.SIGHUP)
        assert b"are in force" in process.stderr.readline()
        process.stdin.close()
        assert process.wait(120) == 0


@pytest.mark.promise("F8")
async def test_policies_are_made_ready_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, where = tmp_path / "policies.toml", set()
    make = CompiledPolicy.__init__

    def seen(self: Any, policy: AgentPolicy) -> None:
        where.add(threading.current_thread())
        make(self, policy)

    path.write_text(
        "".join(
            f'[[policies]]\nagent_id = "a{n}"\nallow = ["add"]\n' for n in range(50)
        )
    )
    guard = ActionGuard()
    monkeypatch.setattr(CompiledPolicy, "__init__", seen)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch_policies, guard, path)
        with anyio.fail_after(60):
            while not guard.may_allow("a1", "add"):
                await anyio.sleep(0.005)
        tasks.cancel_scope.cancel()
    assert where
    assert threading.current_thread() not in where


@pytest.mark.promise("F8")
async def test_only_policies_that_changed_are_made_ready_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []
    make = CompiledPolicy.__init__

    def seen(self: Any, policy: AgentPolicy) -> None:
        made.append(policy.agent_id)
        make(self, policy)

    def policies(*, of_b: str) -> list[AgentPolicy]:
        return [
            AgentPolicy(agent_id="a", allow=["add"]),
            AgentPolicy(agent_id="b", parent="a", allow=[of_b]),
        ]

    guard, other = ActionGuard(policies(of_b="sub")), ActionGuard(policies(of_b="add"))
    monkeypatch.setattr(CompiledPolicy, "__init__", seen)
    assert guard.replace_policies(policies(of_b="add")) == other.policy_version
    assert made == ["b"]
    assert (await guard.decide(call(agent_id="b"), FREE)).allowed
    with pytest.raises(GuardDeniedError):
        async with guard.admit(call("sub", agent_id="b"), FREE):
            pass
