"""A folder of packages that was copied works, without the index; damage does not."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from toolcell.core import PackageError
from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager

from ...support.cells.package_index import Index, filled

pytestmark = pytest.mark.anyio

ANSWER = "import kind\nkind.answer()"


class Copied:
    """A store that was filled, and copied to a machine that has no index."""

    def __init__(self, folder: Path) -> None:
        self._gone = folder / "index"
        self._gone.mkdir()
        self._index: Index = filled(self._gone)
        self.first = folder / "first"
        self.second = folder / "second"

    def config(self, store: Path) -> SandboxConfig:
        rules: PackageRules = self._index.rules(store, "kind")
        return SandboxConfig(backend="subprocess", package_rules=rules)

    async def fill(self) -> None:
        async with SandboxManager(self.config(self.first)) as manager:
            await manager.install(["kind"])
        # Nobody but root can list it; the store itself forbids it again.
        (self.first / "layers").chmod(0o711)
        shutil.copytree(self.first, self.second, symlinks=True)
        # No wheels either: nothing is left to install from.
        shutil.rmtree(self.second / "wheels")
        shutil.rmtree(self._gone)

    @property
    def module(self) -> Path:
        [found] = (self.second / "layers").glob("*/kind/__init__.py")
        return found


@pytest.fixture
async def copied(tmp_path: Path) -> Copied:
    store = Copied(tmp_path)
    await store.fill()
    return store


async def test_a_copy_of_the_folder_is_used_offline(copied: Copied) -> None:
    before = os.listdir(copied.second / "index")
    for _ in range(2):
        async with SandboxManager(copied.config(copied.second)) as manager:
            result = await manager.run(ANSWER, packages=["kind"])

        assert result.value == 42
    assert os.listdir(copied.second / "index") == before


@pytest.mark.parametrize("damage", ["change", "add", "swap", "mode"])
async def test_a_copy_that_is_not_the_same_is_damaged(
    copied: Copied, damage: str
) -> None:
    module = copied.module
    if damage == "change":
        module.chmod(0o644)
        module.write_text(module.read_text().replace("42", "13"))
        module.chmod(0o444)
    elif damage == "add":
        module.with_name("extra.py").write_text("x = 1\n")
    elif damage == "swap":
        module.unlink()
        module.symlink_to("/etc/hostname")
    else:
        module.chmod(0o644)
    async with SandboxManager(copied.config(copied.second)) as manager:
        with pytest.raises(PackageError):
            await manager.run(ANSWER, packages=["kind"])
