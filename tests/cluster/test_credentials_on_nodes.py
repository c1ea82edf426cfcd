"""Credentials on nodes: agents of drivers with a name use them, and no others."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import anyio
import pytest
from anyio import to_thread

from toolcell.cluster import ClusterSandbox, FixedNodes, NodeAgent, new_token
from toolcell.cluster.driver.runs import ask
from toolcell.cluster.node.known_drivers import KnownDrivers
from toolcell.cluster.spi import NodeRecord
from toolcell.cluster.wire.driver_identity import DriverIdentity
from toolcell.core import ConfigError, SandboxError, ToolCall
from toolcell.guard import ActionGuard, AgentPolicy, AuditLog
from toolcell.host import HostConfig
from toolcell.host.config.cluster import ClusterConfig
from toolcell.host.runtime.cluster import ClusterParts, cluster_parts
from toolcell.sandbox import Network, Sandbox, SandboxConfig, SandboxManager
from toolcell.sandbox.credentials.masking import spellings
from toolcell.tools import CodeExecutor, ConcurrentExecutor, ToolRegistry, tool
from toolcell.tools.builtin import code_tools

from ..conftest import BACKENDS, SUBPROCESS, BackendRow
from ..support.cells.memory import found_in_cells
from ..support.cells.mirror import credential_of, inspected, mirroring
from ..support.cells.web_server import NAME, resolve_here, self_signed
from ..support.cluster.local import local_cluster
from ..support.cluster.null_nodes import TOKEN, NullSandbox, driver, null_node
from ..support.cluster.patience import LONG, refusal
from ..support.guard.redis_server import RedisServer

pytestmark = pytest.mark.anyio

# Of this process alone, whose memory is not searched.
VALUE = f"ghp_{secrets.token_hex(20)}"
SPELLINGS = spellings(VALUE)
DRIVERS = {"web": new_token(), "batch": new_token()}
WEB, BATCH = DRIVERS.items()
HOST = "api.example.test:443"
MALFORMED: list[dict[str, Any]] = [
    {"driver": "web"},
    *({"driver": "web", "proof": proof} for proof in (5, "é", None)),
    *({"driver": name, "proof": "0" * 64} for name in (["x"], None)),
]
ROWS = {str(each.id): each for each in BACKENDS}
USE = """
import os, urllib.error, urllib.request
token = os.environ["API_TOKEN"]
def send(path, **headers):
    request = urllib.request.Request("https://{host}" + path, None, headers)
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.headers["X-Toolcell-Refusal"]
shown = [send(path, Authorization="Bearer " + token) for path in ("/plain", "/value")]
tools.look(token=token)
refused = [send("/" + token), send("/", Cookie=token)]
[shown == [token, token], refused]
"""


@pytest.mark.promise("boundary-6")
@pytest.mark.parametrize(
    "backend", [ROWS["subprocess"], ROWS["docker"], ROWS["runsc"]], indirect=True
)
async def test_a_program_on_a_node_uses_a_value_that_it_never_has(
    backend: BackendRow, tmp_path: Path
) -> None:
    searched: list[set[bytes]] = []

    @tool
    async def look(token: str) -> None:
        texts = token.encode(), *SPELLINGS
        searched.append(await to_thread.run_sync(lambda: found_in_cells(*texts)))

    certificate, file = self_signed(tmp_path), tmp_path / "token"
    file.write_text(VALUE)
    with mirroring(certificate, VALUE) as mirror:
        host = f"{NAME}:{mirror.port}"
        config = backend.config(
            network=inspected(host, certificate),
            credentials=(credential_of(file, host, agents=["web/builder"]),),
        )
        guard = ActionGuard(
            [AgentPolicy(agent_id="builder", allow=["*"])],
            audit=AuditLog(tmp_path / "audit.jsonl"),
        )
        async with local_cluster(config, resolve_here, WEB) as sandbox:
            registry = ToolRegistry([look])
            executor = ConcurrentExecutor(registry, guard=guard, sandbox=sandbox)
            code = CodeExecutor(sandbox, registry, executor=executor)
            for added in code_tools(sandbox, executor=code):
                registry.register(added)
            arguments: Any = {"code": USE.replace("{host}", host)}
            call = ToolCall(
                id="c", name="run_python", arguments=arguments, agent_id="builder"
            )
            result: Any = await executor.call(call)
            records = executor.records.query(tool_name="http.request")
    assert "value" in result.content, result
    misplaced = "credential_misplaced"
    assert result.content["value"] == [True, [misplaced, misplaced]]
    assert [f"Bearer {VALUE}\n" in head for head in mirror.heads] == [True, True]
    [found] = searched
    # Containers are no children of this process.
    # `tests/sandbox/network/test_credential_memory.py` searches them.
    expected = 0 if backend.options["backend"] == "docker" else 1
    assert len(found - {*SPELLINGS}) == expected, "the placeholder was not found"
    assert not found & {*SPELLINGS}

    outcomes = [record.result for record in records if record.status == "ok"]
    used = [each["used"] for each in outcomes if isinstance(each, dict)]
    assert used == [["api"], ["api"]]
    denied = [record.reason for record in records if record.status == "denied"]
    assert denied == [misplaced, misplaced]
    log = (tmp_path / "audit.jsonl").read_text()
    assert log.count(f'"{misplaced}"') == 2
    told = f"{result} {records} {log}".encode()
    assert not any(text in told for text in SPELLINGS)


def with_credentials(folder: Path, *agents: str) -> SandboxConfig:
    """Return a configuration with a credential for each of some agents."""
    credentials = []
    for number, agent in enumerate(agents):
        file = folder / str(number)
        file.write_text(secrets.token_hex(20))
        named = {"name": f"api-{number}", "variable": f"API_{number}"}
        credentials.append(credential_of(file, HOST, agents=[agent], **named))
    network = Network(mode="guarded", hosts=(HOST,), inspect=(HOST,))
    return SUBPROCESS.config(network=network, credentials=tuple(credentials))


@pytest.mark.promise("cluster-53")
async def test_drivers_have_their_own_credentials_alone(tmp_path: Path) -> None:
    """Attack: who has the cluster's token says that its agent is another's."""
    config = with_credentials(tmp_path, "web/builder", "batch/builder")
    seen: dict[tuple[str, str | None], Any] = {}

    async def look(name: str, sandbox: ClusterSandbox, agent: str | None) -> None:
        code = "import os\nsorted(name for name in os.environ if 'API' in name)"
        result = await sandbox.run(code, agent_id=agent)
        seen[name, agent] = result.value

    async with AsyncExitStack() as stack:
        manager = await stack.enter_async_context(SandboxManager(config))
        agent = NodeAgent(
            manager,
            token=TOKEN,
            name="n",
            check_seconds=1e6,
            drivers=DRIVERS,
        )
        record = (await stack.enter_async_context(agent)).record
        sandboxes = {
            "web": await stack.enter_async_context(driver(record, driver=WEB)),
            "batch": await stack.enter_async_context(driver(record, driver=BATCH)),
            "none": await stack.enter_async_context(driver(record)),
        }
        async with anyio.create_task_group() as tasks:
            for name, sandbox in sandboxes.items():
                tasks.start_soon(look, name, sandbox, "builder")
            for name in ("batch", "none"):
                tasks.start_soon(look, name, sandboxes[name], "web/builder")
            tasks.start_soon(look, "web", sandboxes["web"], None)

    assert seen == {
        ("web", "builder"): ["API_0"],
        ("batch", "builder"): ["API_1"],
        ("none", "builder"): [],
        ("none", "web/builder"): [],
        ("batch", "web/builder"): [],
        ("web", None): [],
    }


@pytest.fixture
async def record() -> AsyncIterator[NodeRecord]:
    """A node that knows the driver `web`."""
    async with null_node("one", 1, drivers=dict([WEB])) as (_, record):
        yield record


@pytest.mark.promise("cluster-53")
@pytest.mark.parametrize("claimed", [("web", BATCH[1]), BATCH], ids=["key", "name"])
async def test_a_driver_without_the_key_of_its_name_gets_nothing(
    record: NodeRecord, claimed: tuple[str, str]
) -> None:
    nodes = FixedNodes([record])
    sandbox = ClusterSandbox(nodes, token=TOKEN, driver=claimed, wait_seconds=LONG)
    error = await refusal(sandbox)
    assert "one: it does not know this driver by its name and key" in error.message
    assert claimed[1] not in repr(error)


@pytest.mark.promise("cluster-53")
async def test_a_proof_is_for_one_node(record: NodeRecord) -> None:
    """Attack: a node that a driver has met passes its proof on to another one."""
    async with driver(record) as sandbox:
        [node] = sandbox._nodes.open
        elsewhere = DriverIdentity(*WEB).proof("0" * 64, "driver")
        hello = {"op": "hello", "driver": "web", "proof": elsewhere}
        with anyio.fail_after(60), pytest.raises(SandboxError, match="not know"):
            await ask(node.link, hello)


@pytest.mark.promise("cluster-53")
@pytest.mark.parametrize("hello", MALFORMED)
async def test_a_greeting_that_cannot_be_read_proves_no_name(
    record: NodeRecord, hello: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with driver(record) as other, driver(record) as sandbox:
        [node], [undisturbed] = sandbox._nodes.open, other._nodes.open
        with anyio.fail_after(60):
            with pytest.raises(SandboxError, match="it does not know this driver"):
                await ask(node.link, {"op": "hello", **hello})
            await ask(undisturbed.link, {"op": "status"})
    assert caplog.text.count("it did not prove its name") == 1


@pytest.mark.promise("cluster-53")
@pytest.mark.parametrize("sends_back", [False, True])
async def test_a_node_without_the_key_of_a_driver_gets_nothing(
    monkeypatch: pytest.MonkeyPatch, *, sends_back: bool
) -> None:
    """Attack: whoever has the token is a node, and sends a driver's proof back."""

    def name_of(_: KnownDrivers, greeting: Any, fingerprint: str) -> Any:
        assert DriverIdentity(*WEB).accepts(greeting["proof"], fingerprint, "driver")
        return None, greeting["proof"] if sends_back else None

    monkeypatch.setattr(KnownDrivers, "name_of", name_of)
    async with null_node("fake", 1) as (cells, record):
        cells.waits = False
        nodes = FixedNodes([record])
        sandbox = ClusterSandbox(nodes, token=TOKEN, driver=WEB, wait_seconds=LONG)
        error = await refusal(sandbox)
    assert "fake: it did not prove that it has the key" in error.message
    assert cells.begun == []


CONFIG = """
[cluster]
directory = "env:DIRECTORY"
token = "env:TOKEN"
drivers = { web = "env:WEB_KEY" }
node = "one"
"""


@pytest.mark.promise("cluster-53")
async def test_a_driver_and_a_node_have_the_key_of_the_configuration(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    path = tmp_path / "toolcell.toml"
    path.write_text(CONFIG)
    node = HostConfig.from_file(path)
    path.write_text(CONFIG + 'driver = "web"\nwait_seconds = 60')
    web = HostConfig.from_file(path)
    environ = {"DIRECTORY": redis_server.url, "TOKEN": TOKEN, "WEB_KEY": WEB[1]}
    other = {**environ, "WEB_KEY": BATCH[1]}
    cells = NullSandbox("one", 1)
    with (
        cluster_parts(node, environ) as nodes,
        cluster_parts(web, environ) as known,
        cluster_parts(web, other) as unknown,
    ):
        async with nodes.agent(cast(Sandbox, cells)):
            async with known.sandbox() as sandbox:
                assert sandbox.nodes == ("one",)
            error = await refusal(unknown.sandbox())
    assert "does not know this driver" in error.message

    path.write_text(CONFIG + 'driver = "batch"')
    with pytest.raises(ConfigError, match="no key of the driver batch"):
        HostConfig.from_file(path)


@pytest.mark.promise("cluster-53")
@pytest.mark.parametrize("agent", ["*", "builder", "batch/builder", "web/", "/x"])
def test_a_node_has_credentials_for_drivers_that_it_knows_alone(
    tmp_path: Path, agent: str
) -> None:
    manager = SandboxManager(with_credentials(tmp_path, "web/builder", agent))
    with pytest.raises(ConfigError, match="the credential api-1 is for"):
        NodeAgent(manager, token=TOKEN, name="one", drivers=dict([WEB]))


@pytest.mark.promise("cluster-53")
async def test_nodes_on_ray_are_not_started_with_credentials(tmp_path: Path) -> None:
    settings = ClusterConfig(address="auto")
    parts = ClusterParts(settings, cast(Any, None), TOKEN, {})
    with pytest.raises(ConfigError, match="nodes on Ray have no credentials"):
        await parts.start_on_ray(with_credentials(tmp_path, "web/builder"))


@pytest.mark.parametrize(
    ("drivers", "words"),
    [
        ({"web": WEB[1], "batch": WEB[1]}, "two drivers have the same key"),
        ({"web": TOKEN}, "or one has the cluster's token"),
        ({"web": "secret"}, "the key of the driver web is 64 hex digits"),
        ({"7": WEB[1]}, "'7' is no name of a driver"),
        ({"a/b": WEB[1]}, "'a/b' is no name of a driver"),
    ],
)
def test_names_and_keys_that_say_nothing_are_refused(
    drivers: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        NodeAgent(SandboxManager(), token=TOKEN, name="one", drivers=drivers)
    assert not any(key in repr(caught.value) for key in drivers.values())
