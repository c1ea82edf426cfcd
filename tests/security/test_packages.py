"""Hostile packages, and programs that attack the packages of others."""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from toolcell.core import ConfigError, PackageError, SandboxUnavailableError
from toolcell.sandbox import Mount, SandboxManager
from toolcell.sandbox.packages import layer_files, layer_store
from toolcell.sandbox.spi import list_packages

from ..conftest import SUBPROCESS, BackendRow
from ..support.attacks.as_programs import attempt, program
from ..support.attacks.programs import writes
from ..support.cells.package_index import Index, filled
from ..support.ordinary_user import (
    ORDINARY_USER,
    as_ordinary_user,
    need_an_ordinary_user,
)

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return filled(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
async def packed(
    backend: BackendRow, index: Index, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[SandboxManager]:
    folder = tmp_path_factory.mktemp("store")
    config = backend.config(package_rules=index.rules(folder, "*"))
    async with SandboxManager(config) as manager:
        yield manager


def every_file(folder: Path) -> dict[str, bytes]:
    return {
        str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.promise("E-16", "QP9")
async def test_a_layer_cannot_be_written_from_a_cell(packed: SandboxManager) -> None:
    place = await packed.install(["kind"])
    here = layer_store.LayerStore(packed.config.package_rules.folder).layers
    before = every_file(here / Path(place).name)
    inputs = {"base": f"{place}/kind"}
    code = program(writes, attempt).replace("/text", "/__init__.py")
    result = await packed.run(code, inputs=inputs, packages=["kind"])

    assert isinstance(result.value, dict), result.stderr
    assert set(result.value.values()) <= {"EROFS", "EACCES", "EPERM", "ENOENT"}
    assert result.value["overwrite"] in ("EROFS", "EACCES", "EPERM")
    assert result.value["create"] in ("EROFS", "EACCES", "EPERM")
    assert every_file(here / Path(place).name) == before


async def test_a_program_finds_no_layer_but_its_own(packed: SandboxManager) -> None:
    await packed.install(["stem"])
    code = (
        "import os\n"
        "try: seen = os.listdir('/packages')\n"
        "except OSError as error: seen = type(error).__name__\n"
        "mounts = open('/proc/self/mountinfo').read()\n"
        "[seen, 'leaf' in mounts]"
    )
    result = await packed.run(code, packages=["kind"])

    assert result.value == ["PermissionError", False], result.stderr


@pytest.mark.promise("E-79", "QP8")
async def test_a_package_runs_nothing_at_start(packed: SandboxManager) -> None:
    code = "import os\nsorted(os.listdir())"
    for package in ("startup", "site"):
        result = await packed.run(code, packages=[package])
        assert result.value == ["main.py"], package


async def test_set_up_programs_never_run(packed: SandboxManager, index: Index) -> None:
    with pytest.raises(PackageError) as caught:
        await packed.run("1", packages=["unbuilt"])

    assert caught.value.details["reason"] == "no_wheel"
    assert not (index.root / "canary").exists()


@pytest.mark.promise("R18")
async def test_a_wheel_writes_nowhere_else(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b" / "store"
    folder.parent.mkdir(parents=True)
    config = SUBPROCESS.config(package_rules=index.rules(folder, "*"))
    async with SandboxManager(config) as manager:
        try:
            place = await manager.install(["escape"])
        except PackageError:
            place = "refused"
    places = [folder / "layers" / Path(place).name, folder / "wheels"]
    outside = [
        path
        for path in tmp_path.rglob("*escaped*")
        if not any(path.is_relative_to(each) for each in places)
    ]

    assert outside == []
    assert not (index.root / "canary").exists()


@pytest.mark.promise("R18")
async def test_a_link_in_a_wheel_leads_nowhere(packed: SandboxManager) -> None:
    try:
        place = await packed.install(["linked"])
    except PackageError as error:
        assert error.details["reason"] == "not_a_file"
        return
    folder = Path(packed.config.package_rules.folder or "") / "layers"
    found = [
        path for path in (folder / Path(place).name).rglob("*") if path.is_symlink()
    ]

    assert found == []


async def test_links_in_a_layer_are_refused(tmp_path: Path) -> None:
    store = layer_store.LayerStore(str(tmp_path / "store"))
    path = store.begin()
    (path / "link").symlink_to("/etc/passwd")
    with pytest.raises(PackageError) as caught:
        store.publish(path, 2**20)
    assert caught.value.details["reason"] == "not_a_file"

    other = store.begin()
    (other / "file").write_text("x")
    os.link(other / "file", tmp_path / "second name")
    with pytest.raises(PackageError):
        store.publish(other, 2**20)


async def test_a_wheel_that_changed_on_the_index_is_refused(
    index: Index, tmp_path: Path
) -> None:
    own = tmp_path / "index"
    own.mkdir()
    changing = Index(own)
    changing.wheel("kind", {"kind.py": "x = 1\n"})
    folder = tmp_path / "store"
    config = SUBPROCESS.config(package_rules=changing.rules(folder, "*"))
    async with SandboxManager(config) as manager:
        place = await manager.install(["kind"])
    layer_files.remove_tree(folder / "layers" / Path(place).name)
    layer_files.remove_tree(folder / "wheels")
    changing.wheel("kind", {"kind.py": "x = 'other'\n"})

    async with SandboxManager(config) as manager:
        with pytest.raises(PackageError, match=r"[Hh]ash") as caught:
            await manager.install(["kind"])
    assert caught.value.details["reason"] == "failed"
    assert not list((folder / "building").iterdir())


async def test_a_store_that_others_may_write_is_refused(
    index: Index, tmp_path: Path
) -> None:
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o777)
    config = SUBPROCESS.config(package_rules=index.rules(folder, "*"))
    with pytest.raises(SandboxUnavailableError, match="others may write"):
        async with SandboxManager(config):
            pass

    with pytest.raises(SandboxUnavailableError):
        list_packages("/proc/none")


async def test_no_mount_hides_the_packages(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the cell's own"):
        Mount(source=str(tmp_path), target="/packages/kind")


_BEFORE = """
from toolcell.sandbox import PackageRules
from toolcell.sandbox.packages import installer, uv
"""
_PROGRAM = """
sys.executable = python
index_url, folder = arguments
CODE = '''
import kind, os
seen = []
for what in (lambda: os.listdir("/packages"), lambda: os.chmod("/packages", 0o755),
             lambda: open(kind.__file__, "a"), lambda: os.chmod(kind.__file__, 0o777)):
    try:
        what()
        seen.append("done")
    except OSError as error:
        seen.append(type(error).__name__)
[kind.answer(), seen]
'''
async def main():
    rules = PackageRules(allow=["kind"], index_url=index_url, folder=folder)
    config = SandboxConfig(backend="subprocess", python=python, package_rules=rules)
    async with SandboxManager(config) as manager:
        result = await manager.run(CODE, packages=["kind"])
        print(result.status, result.value)
        if result.status != "ok":
            print(result.stderr)
anyio.run(main)
"""


@pytest.mark.namespaces
async def test_the_owner_of_the_store_gets_no_further() -> None:
    """As an ordinary user a program has the uid that owns the layers."""
    need_an_ordinary_user()
    with tempfile.TemporaryDirectory(prefix="packages-") as folder:
        os.chmod(folder, 0o755)
        index = Index(Path(folder))
        index.wheel("kind", {"kind.py": "def answer():\n    return 42\n"})
        os.chown(folder, ORDINARY_USER, ORDINARY_USER)
        printed = as_ordinary_user(
            _PROGRAM,
            *(index.url, f"{folder}/store"),
            before=_BEFORE,
            env={**os.environ, "HOME": folder},
            timeout=180,
        )

    refused = ["PermissionError", "OSError", "PermissionError", "OSError"]
    assert printed == f"ok [42, {refused}]\n"
