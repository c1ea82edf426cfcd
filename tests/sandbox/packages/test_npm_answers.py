"""What a cell of npm hands back is believed for its own image alone."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import anyio
import pytest

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    PackageError,
    SandboxUnavailableError,
)
from toolcell.sandbox import (
    ExecutionResult,
    PackageRules,
    SandboxConfig,
    SandboxManager,
)
from toolcell.sandbox.backends.docker import DockerBackend
from toolcell.sandbox.cell.wire import trust
from toolcell.sandbox.client.types import CellTraits
from toolcell.sandbox.packages.npm_installer import (
    InstalledConfig,
    require_maker,
    with_npm,
)
from toolcell.sandbox.spi import prune_packages

from ...conftest import SUBPROCESS

pytestmark = pytest.mark.anyio

DOCKER = CellTraits("docker", "container", (), image="sha256:1")
LOCK = {
    "packages": {
        "node_modules/a": {
            "version": "1.0.0",
            "resolved": "https://registry.npmjs.org/a/-/a-1.0.0.tgz",
            "integrity": "sha512-x",
        }
    }
}


class NpmCell:
    """A sandbox whose node and npm say what a test wants.

    Args:
        files: The files of the set, by their paths.
        traits: Those of the sandbox.
        platform: The answer to the question for its node.
        archive: The bytes of an archive that come before the files.
    """

    def __init__(
        self,
        files: Mapping[str, str],
        traits: CellTraits,
        platform: Any = None,
        archive: bytes = b"",
    ) -> None:
        self.traits = traits
        self._platform = platform or [[], "linux-x64-127-glibc"]
        own = io.BytesIO()
        with tarfile.open(fileobj=own, mode="w") as tar:
            for path, text in files.items():
                entry = tarfile.TarInfo(path)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
        lock = json.dumps(LOCK).encode()
        self._files = {"layer.tar": archive + own.getvalue(), "package-lock.json": lock}

    @asynccontextmanager
    async def open(self, config: SandboxConfig) -> AsyncIterator[NpmCell]:
        assert not config.npm
        yield self

    @asynccontextmanager
    async def session(self) -> AsyncIterator[NpmCell]:
        yield self

    async def write_file(self, path: str, data: bytes | str) -> None:
        pass

    async def read_file(self, path: str, max_bytes: int) -> bytes:
        return self._files[path]

    async def install(self, packages: Any, *, on_step: Any = None) -> None:
        raise InvalidInputError("npm's cell needs no packages")

    async def run(
        self, code: str, *, fresh: bool, inputs: Mapping[str, Any] | None
    ) -> ExecutionResult:
        return ExecutionResult(status="ok", value=None if inputs else self._platform)


class NpmCellOfScripts(NpmCell):
    """A sandbox without walls, whose npm installs a file that says what it trusts.

    Args:
        folder: Its work dir, and what comes before its PATH.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__({}, DOCKER)
        self._folder = folder
        npm = folder / "npm"
        npm.write_text(
            "#!/bin/sh\nmkdir -p node_modules/a\n"
            'printf %s "$NODE_EXTRA_CA_CERTS" >node_modules/a/index.js\n'
        )
        npm.chmod(0o755)

    async def run(
        self, code: str, *, fresh: bool, inputs: Mapping[str, Any] | None
    ) -> ExecutionResult:
        if not inputs:
            return await super().run(code, fresh=fresh, inputs=inputs)
        given = "".join(f"{name} = {value!r}\n" for name, value in inputs.items())
        await anyio.run_process(
            [sys.executable, "-Ic", given + code],
            cwd=self._folder,
            env={"PATH": f"{self._folder}{os.pathsep}{os.environ['PATH']}"},
        )
        self._files["layer.tar"] = (self._folder / "layer.tar").read_bytes()
        return ExecutionResult(status="ok")


async def installed(cell: NpmCell, folder: Path, **options: Any) -> Path:
    """Return the folder in which cells of a configuration find the set."""
    rules = PackageRules(folder=str(folder))
    config = SandboxConfig(npm=("a@1.0.0",), package_rules=rules, **options)
    async with with_npm(config, cell.open) as shown:
        assert isinstance(shown, InstalledConfig)
        return Path(shown.node_modules)


@pytest.mark.promise("door-11")
async def test_a_set_serves_the_image_that_made_it_alone(tmp_path: Path) -> None:
    evil = NpmCell({"node_modules/a/index.js": "evil"}, DOCKER)
    first = await installed(evil, tmp_path)
    assert (first / "a" / "index.js").read_text() == "evil"

    good = {"node_modules/a/index.js": "good"}
    for traits in (
        DOCKER._replace(image="sha256:2"),
        CellTraits("subprocess", "namespaces", ()),
    ):
        other = await installed(NpmCell(good, traits), tmp_path)
        assert (other / "a" / "index.js").read_text() == "good"
    stronger = await installed(NpmCell(good, DOCKER), tmp_path, runtime="runsc")
    assert (stronger / "a" / "index.js").read_text() == "good"

    assert await installed(NpmCell(good, DOCKER), tmp_path) == first


@pytest.mark.parametrize("backend", ["auto", "docker"])
async def test_nothing_is_installed_for_an_engine_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: Literal["auto", "docker"]
) -> None:
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:1")
    rules = PackageRules(folder=str(tmp_path / "store"))
    config = SandboxConfig(backend=backend, npm=("a@1.0.0",), package_rules=rules)
    manager = SandboxManager(config)
    cell = NpmCell({"node_modules/a/index.js": ""}, DOCKER)
    monkeypatch.setattr(manager, "_open_builder", cell.open)

    with pytest.raises(ConfigError, match="npm need an engine on this machine"):
        async with manager:
            pass
    assert not (tmp_path / "store").exists()


async def test_a_backend_refuses_packages_of_npm_for_an_engine_elsewhere() -> None:
    # The doctor starts it without a manager, which refuses them itself.
    config = SandboxConfig(docker_host="tcp://127.0.0.1:1", npm=("a@1.0.0",))
    backend = DockerBackend(config)
    try:
        with pytest.raises(ConfigError, match="npm need an engine on this machine"):
            await backend.start()
    finally:
        await backend.aclose()


async def test_a_set_is_free_again_where_the_cell_ends_badly(tmp_path: Path) -> None:
    class Ending(NpmCell):
        @asynccontextmanager
        async def open(self, config: SandboxConfig) -> AsyncIterator[NpmCell]:
            yield self
            raise SandboxUnavailableError("the engine is gone")

    with pytest.raises(SandboxUnavailableError, match="gone"):
        await installed(Ending({"node_modules/a/index.js": ""}, DOCKER), tmp_path)
    assert len(prune_packages(0, str(tmp_path))) == 1


@pytest.mark.promise("door-11")
@pytest.mark.namespaces
async def test_cells_of_another_backend_do_not_see_a_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = PackageRules(folder=str(tmp_path))
    config = SUBPROCESS.config(npm=("a@1.0.0",), package_rules=rules)
    manager = SandboxManager(config)
    evil = NpmCell({"node_modules/a/index.js": "evil"}, DOCKER)
    monkeypatch.setattr(manager, "_open_builder", evil.open)

    with pytest.raises(SandboxUnavailableError, match="installed by docker sha256:1"):
        async with manager:
            pass
    assert len(prune_packages(0, str(tmp_path))) == 1


def test_cells_of_another_image_do_not_see_a_set() -> None:
    config = InstalledConfig.model_construct(made_by="docker sha256:1")
    require_maker(config, DOCKER)
    with pytest.raises(SandboxUnavailableError, match="docker sha256:2 makes"):
        require_maker(config, DOCKER._replace(image="sha256:2"))


@pytest.mark.parametrize(
    "files",
    [
        {"index.js": ""},
        {"node_modules": ""},
        {"node_modules/.bin": ""},
        {"node_modules/a/x": "", "node_modules/.package-lock.json/x": ""},
    ],
)
async def test_an_archive_of_another_form_is_an_error(
    tmp_path: Path, files: dict[str, str]
) -> None:
    with pytest.raises(PackageError, match="the archive of its cell"):
        await installed(NpmCell(files, DOCKER), tmp_path)


def header(kind: bytes, size: int) -> bytes:
    entry = tarfile.TarInfo("x")
    entry.type, entry.size = kind, size
    return entry.tobuf(tarfile.GNU_FORMAT)


@pytest.mark.promise("door-11")
@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(header(b"5", 0) + header(b"Z", -512), id="backwards"),
        pytest.param((header(b"L", 3) + b"x".ljust(512)) * 3000, id="deep"),
    ],
)
async def test_an_archive_that_never_ends_is_an_error(
    tmp_path: Path, archive: bytes
) -> None:
    cell = NpmCell({}, DOCKER, archive=archive)
    with pytest.raises(PackageError, match="the archive of its cell"):
        await installed(cell, tmp_path)


@pytest.mark.parametrize(
    "said", [1, [[]], [[], 1], [["node", {}], "x"], [["me"], "x"], [[], "x" * 300]]
)
async def test_a_node_that_is_none_is_an_error(tmp_path: Path, said: Any) -> None:
    with pytest.raises(PackageError, match="which node it has"):
        await installed(NpmCell({}, DOCKER, said), tmp_path)


async def test_programs_do_not_see_where_packages_came_from(tmp_path: Path) -> None:
    files = {"node_modules/.package-lock.json": "", "node_modules/a/index.js": ""}
    folder = await installed(NpmCell(files, DOCKER), tmp_path)

    assert sorted(path.name for path in folder.iterdir()) == [".bin", "a"]


@pytest.mark.parametrize("has_store", [True, False])
async def test_npm_trusts_the_certificates_of_its_system(
    has_store: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, store = tmp_path / "work", tmp_path / "store.pem"
    work.mkdir()
    if has_store:
        store.touch()
    monkeypatch.setattr(trust, "STORES", (str(tmp_path / "absent"), str(store)))

    shown = await installed(NpmCellOfScripts(work), tmp_path / "packages")

    trusted = (shown / "a" / "index.js").read_text()
    assert trusted == (str(store) if has_store else "")
