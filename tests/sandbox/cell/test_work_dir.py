"""The work dir's name is a setting: programs, commands and file calls agree on it."""

from __future__ import annotations

from typing import Any

import pytest

from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import Mount, SandboxConfig, SandboxManager

from ...conftest import CONFINED, SUBPROCESS, BackendRow

pytestmark = pytest.mark.anyio

WHERE = """
import os
[os.getcwd(), os.environ["HOME"], os.path.expanduser("~"), os.access(".", os.W_OK),
 os.path.ismount(os.getcwd()), os.path.exists("/work")]
"""


@pytest.mark.parametrize("work_dir", ["/workspace", "/home/user", "/srv/a.b/c-d"])
async def test_programs_and_commands_start_there(
    backend: BackendRow, work_dir: str
) -> None:
    async with (
        SandboxManager(backend.config(work_dir=work_dir)) as manager,
        manager.session() as session,
    ):
        fresh = await manager.run(WHERE)
        kept = await session.run(WHERE)
        command = "pwd; echo $HOME; cd; pwd; cd ~; pwd; which python"
        said = await (await session.exec(command)).wait()

        assert fresh.value == kept.value == [*[work_dir] * 3, True, True, False]
        assert said.stdout.split() == [*[work_dir] * 4, "/python/bin/python"]


async def test_file_calls_and_forks_mean_the_same_folder(backend: BackendRow) -> None:
    config = backend.config(work_dir="/home/user")
    async with SandboxManager(config) as manager, manager.session() as session:
        await session.write_file("/home/user/a", b"1")
        await session.write_file("b", b"2")
        said = await session.run("import os\nsorted(os.listdir('/home/user'))")
        branch = await session.fork()
        await branch.write_file("c", b"3")
        in_branch = await branch.run("sorted(os.listdir())")

        assert await session.read_file("a") == b"1"
        assert await session.read_file("/home/user/b") == b"2"
        assert said.value == ["a", "b"]
        assert in_branch.value == ["a", "b", "c"]


@pytest.mark.namespaces
async def test_a_used_cell_begins_there_with_an_empty_one() -> None:
    config = SUBPROCESS.config(work_dir="/home/user", programs_per_cell=3)
    async with SandboxManager(config) as manager:
        for _ in range(3):
            seen = await manager.run(
                "import os\nleft = os.listdir()\nopen('x', 'w')\n[left, os.getcwd()]"
            )
            assert seen.value == [["main.py"], "/home/user"]


@pytest.mark.parametrize(
    "work_dir",
    [
        *("", "/", "work", "/work/", "/a//b", "/a/../etc", "/a/./b", "/a b", "/a:b"),
        *("/a\nb", "/proc/x", "/dev/shm", "/etc", "/usr/x", "/tmp", "/tmp/x", "/root"),
        *("/python", "/packages/x", "/node", "/var/x", "/" + "a" * 200),
    ],
)
def test_folders_that_it_cannot_be(work_dir: str) -> None:
    with pytest.raises(ConfigError):
        SandboxConfig(work_dir=work_dir)


@pytest.mark.parametrize("target", ["/data", "/data/in", "/data/in/it"])
def test_a_mount_is_not_in_the_way(target: str) -> None:
    mounts = (Mount(source="/usr/share", target=target),)
    with pytest.raises(ConfigError, match="work dir"):
        SandboxConfig(work_dir="/data/in", mounts=mounts)


@pytest.mark.parametrize(
    "options",
    [CONFINED.options, {"backend": "process", "minimum_isolation": "process"}],
    ids=["confined", "process"],
)
async def test_cells_without_a_root_of_their_own_refuse_another(
    options: dict[str, Any],
) -> None:
    config = SandboxConfig(**options, work_dir="/home/user")
    with pytest.raises(SandboxUnavailableError, match="not in /home/user"):
        async with SandboxManager(config):
            pass


async def test_the_interpreter_is_not_in_the_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from toolcell.sandbox.backends import launcher_setup

    monkeypatch.setattr(launcher_setup, "shown_paths", lambda _: ["/home/user/py/lib"])
    with pytest.raises(ConfigError, match="interpreter"):
        async with SandboxManager(SUBPROCESS.config(work_dir="/home/user")):
            pass
