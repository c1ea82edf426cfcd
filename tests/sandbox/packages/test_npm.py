"""Packages of npm: installed in a separate cell, found by all programs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from toolcell.core import PackageError, SandboxUnavailableError
from toolcell.sandbox import Limits, SandboxConfig, SandboxManager
from toolcell.sandbox.packages import layer_files
from toolcell.sandbox.spi import list_packages, prune_packages

from ...conftest import BACKENDS, SUBPROCESS, BackendRow
from ...support.cells.node_cells import npm_options
from ...support.cells.npm_registry import NpmRegistry, fill, npm_registry

pytestmark = pytest.mark.anyio

ROWS = {str(each.id): each for each in BACKENDS}
ON_BOTH = pytest.mark.parametrize(
    "backend", [ROWS["subprocess"], ROWS["docker"]], indirect=True, scope="session"
)
ON_DOCKER = pytest.mark.parametrize(
    "backend", [ROWS["docker"]], indirect=True, scope="session"
)
OTHERS = ("scripted", "linked", "inner")
COMMANDS = ["bash", "escape", "say-it"]
"""Those of the tool; npm has taken the folders out of the second one's name."""

FOUND = "require('stem').leaf.name"


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[NpmRegistry]:
    """A server on this machine that is not the registry."""
    with npm_registry() as other:
        other.add("kind", {"index.js": "module.exports = 'of elsewhere'\n"})
        yield other


@pytest.fixture(scope="module")
def registry(elsewhere: NpmRegistry) -> Iterator[NpmRegistry]:
    with npm_registry() as registry:
        fill(registry, elsewhere.url)
        yield registry


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("npm") / "store"


def config(
    backend: BackendRow, registry: NpmRegistry, store: Path, *npm: str
) -> SandboxConfig:
    return backend.config(
        npm=npm,
        package_rules=registry.rules(store),
        limits=Limits(wall_seconds=60, memory_mib=512),
        **npm_options(backend),
    )


@pytest.fixture(scope="module")
async def packed(
    backend: BackendRow, registry: NpmRegistry, store: Path
) -> AsyncIterator[SandboxManager]:
    wanted = ("stem@^1.0.0", "kind@1.0.0", "@scope/tool@1.0.0", *OTHERS)
    async with SandboxManager(config(backend, registry, store, *wanted)) as manager:
        yield manager


@ON_BOTH
@pytest.mark.promise("door-10")
async def test_programs_find_them_from_every_folder(packed: SandboxManager) -> None:
    required = await packed.run(FOUND, language="node")
    imported = await packed.run(
        "import seven from 'stem/m.mjs'\nexport default seven", language="node"
    )
    elsewhere = await packed.run(
        "mkdir -p /tmp/deep/er && cd /tmp/deep/er && node -p \"require('kind')\"",
        language="bash",
    )

    assert required.value == "leaf", required.stderr
    assert imported.value == 7, imported.stderr
    assert elsewhere.stdout == "41\n", elsewhere.stderr


@ON_BOTH
@pytest.mark.promise("door-10")
async def test_commands_are_in_path(packed: SandboxManager) -> None:
    async with packed.session() as session:
        command = await (await session.exec(["say-it", "it's", "$a b"])).wait()
    shell = await packed.run("say-it; ls -a /node_modules/.bin", language="bash")
    inner = await packed.run("/node_modules/inner/program", language="bash")

    assert command.stdout == "said leaf it's $a b\n", command.stderr
    assert shell.stdout.split() == ["said", "leaf", ".", "..", *COMMANDS]
    assert inner.stdout == "inner\n", inner.stderr


@ON_BOTH
@pytest.mark.promise("door-11")
async def test_nobody_can_change_them_and_no_script_was_run(
    packed: SandboxManager,
) -> None:
    result = await packed.run(
        "cd /node_modules; ls ran linked/out; echo x > kind/index.js; rm -r kind;"
        " find . -type l; cat kind/index.js",
        language="bash",
    )

    assert result.stdout == "module.exports = 41\n"
    assert result.stderr.count("No such file") == 2
    assert result.stderr.count("Read-only file system") >= 2


@pytest.mark.namespaces
@pytest.mark.promise("door-11")
@pytest.mark.parametrize(
    ("package", "reason"),
    [
        ("absent", "not_found"),
        ("kind@9.0.0", "not_found"),
        ("changed", "failed"),
        ("weak", "not_from_registry"),
        ("bare", "not_from_registry"),
        ("compiled", "needs_script"),
        ("from-git", "failed"),
        ("from-archive", "refused"),
        ("from-file", ""),
    ],
)
async def test_what_is_refused_says_why(
    registry: NpmRegistry,
    elsewhere: NpmRegistry,
    store: Path,
    package: str,
    reason: str,
) -> None:
    with pytest.raises(PackageError, match="npm") as caught:
        async with SandboxManager(config(SUBPROCESS, registry, store, package)):
            pass

    assert caught.value.details["reason"] == reason or not reason
    assert package not in str([each.packages for each in list_packages(str(store))])
    assert elsewhere.asked == []


@pytest.mark.namespaces
@pytest.mark.promise("door-10")
async def test_a_set_is_installed_once_and_stays_until_it_is_pruned(
    registry: NpmRegistry, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    settings = config(SUBPROCESS, registry, store, "prebuilt", "kind")
    async with SandboxManager(settings):
        assert prune_packages(0, str(store)) == ()
        asked = len(registry.asked)
        [layer] = list_packages(str(store))
        async with SandboxManager(settings) as second:
            result = await second.run("require('kind')", language="node")
    assert result.value == 42
    assert len(registry.asked) == asked
    assert layer.packages == ("kind@2.0.0", "prebuilt@1.0.0")
    assert layer.python == "node" and layer.platform.startswith("linux-")

    # A damaged set is the same again, though the registry has a newer version.
    registry.add("kind", {"index.js": "module.exports = 43\n"}, version="3.0.0")
    [damaged] = (store / "layers").iterdir()
    layer_files.remove_tree(damaged / "node_modules" / "kind")
    async with SandboxManager(settings) as third:
        result = await third.run("require('kind')", language="node")
        assert prune_packages(0, str(store)) == ()
    assert result.value == 42
    assert [package.key for package in prune_packages(0, str(store))] == [layer.key]
    assert list((store / "resolved").iterdir()) == []


@pytest.mark.parametrize("backend", [ROWS["confined"]], indirect=True, scope="session")
async def test_nothing_is_fetched_for_cells_that_cannot_show_it(
    backend: BackendRow, tmp_path: Path, registry: NpmRegistry
) -> None:
    asked = len(registry.asked)
    settings = backend.config(npm=("kind",), package_rules=registry.rules(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="show no packages of npm"):
        async with SandboxManager(settings):
            pass
    assert len(registry.asked) == asked


@ON_DOCKER
async def test_cells_without_npm_say_so(
    backend: BackendRow, tmp_path: Path, registry: NpmRegistry
) -> None:
    settings = backend.config(npm=("kind",), package_rules=registry.rules(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="need node and npm in cells"):
        async with SandboxManager(settings):
            pass
