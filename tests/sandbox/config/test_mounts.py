"""Mounts: what may be shown to a cell, and what programs can do with it."""

from __future__ import annotations

import json
import os
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import toolcell.guard
from toolcell.core import ConfigError, SandboxUnavailableError
from toolcell.sandbox import Mount, SandboxConfig, SandboxManager
from toolcell.sandbox.backends import launcher, launcher_setup
from toolcell.sandbox.config import mount_rules

from ...conftest import CONFINED, SUBPROCESS, BackendRow
from ...support.attacks.as_programs import attempt, program
from ...support.attacks.programs import writes
from ...support.ordinary_user import ORDINARY_USER, SYSTEM_PYTHON, as_ordinary_user

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with `given` to read, `out` to write and a secret beside them."""
    base = tmp_path_factory.mktemp("mounts")
    for name in ("given/below", "out"):
        (base / name).mkdir(parents=True)
    (base / "given" / "text").write_text("given\n")
    (base / "given" / "below" / "text").write_text("below\n")
    (base / "secret").write_text("canary\n")
    (base / "given" / "link").symlink_to(base / "secret")
    (base / "given" / "way out").symlink_to("../secret")
    (base / "out").chmod(0o777)
    return base


@pytest.fixture(scope="module")
async def shown(backend: BackendRow, folders: Path) -> AsyncIterator[SandboxManager]:
    """A manager whose cells have /data read-only and /out to write."""
    mounts = (
        Mount(source=str(folders / "given"), target="/data"),
        Mount(source=str(folders / "given" / "text"), target="/one/file"),
        Mount(source=str(folders / "out"), target="/out", read_only=False),
    )
    async with SandboxManager(backend.config(mounts=mounts)) as manager:
        yield manager


@pytest.mark.promise("P-29")
async def test_programs_read_what_is_mounted(shown: SandboxManager) -> None:
    code = "[open(p).read() for p in ('/data/text', '/data/below/text', '/one/file')]"
    result = await shown.run(code)

    assert result.value == ["given\n", "below\n", "given\n"], result.stderr


@pytest.mark.promise("P-29")
async def test_what_is_written_stays_on_the_host(
    shown: SandboxManager, folders: Path
) -> None:
    result = await shown.run("open('/out/answer', 'w').write('42')")
    again = await shown.run("open('/out/answer').read()")

    assert (result.status, again.value) == ("ok", "42")
    assert (folders / "out" / "answer").read_text() == "42"
    (folders / "out" / "answer").unlink()


@pytest.mark.promise("E-16", "P-29")
async def test_a_read_only_mount_cannot_be_written(
    shown: SandboxManager, folders: Path
) -> None:
    for mode in (0o777, 0o755):
        # Whether or not the files themselves are open to everybody.
        for path in (folders / "given", folders / "given" / "below"):
            path.chmod(mode)
        (folders / "given" / "text").chmod(mode)
        result = await shown.run(program(writes, attempt), inputs={"base": "/data"})
        assert isinstance(result.value, dict), result.stderr
        allowed = {"EROFS", "EACCES", "EPERM"}
        assert set(result.value.values()) <= allowed, result.value

    assert sorted(os.listdir(folders / "given")) == [
        "below", "link", "text", "way out"
    ]  # fmt: skip
    assert (folders / "given" / "text").read_text() == "given\n"


def remount() -> dict[str, str]:
    import ctypes
    import errno

    libc = ctypes.CDLL(None, use_errno=True)
    ms_remount, ms_bind = 32, 4096

    def said(result: int) -> str:
        return errno.errorcode[ctypes.get_errno()] if result else "done"

    return {
        "writable": said(
            libc.mount(b"none", b"/data", None, ms_remount | ms_bind, None)
        ),
        "elsewhere": said(libc.mount(b"/data", b"/work", None, ms_bind, None)),
        "away": said(libc.umount2(b"/data", 2)),
    }


@pytest.mark.promise("E-16", "E-37", "P-29")
async def test_a_mount_cannot_be_changed_from_inside(shown: SandboxManager) -> None:
    result = await shown.run(program(remount))

    assert isinstance(result.value, dict), result.stderr
    assert set(result.value.values()) <= {"EPERM", "ENOSYS"}


def leave_by_links(secret: str) -> list[str]:
    import os

    ways = [
        "/data/link",
        "/data/way out",
        "/data/../secret",
        "/data/below/../../secret",
        "/out/absolute",
        "/out/relative",
        "/out/proc/secret",
    ]
    os.symlink(secret, "/out/absolute")
    os.symlink("../" * 12 + secret[1:], "/out/relative")
    os.symlink("/proc/1/root" + os.path.dirname(secret), "/out/proc")
    inside = os.open("/data/below", os.O_RDONLY)
    found = []
    for way in ways:
        if attempt(lambda w=way: open(w).read()) == "done":  # type: ignore[misc]
            found.append(way)
    upwards = lambda: os.open("../../secret", os.O_RDONLY, dir_fd=inside)  # noqa: E731
    if attempt(upwards) == "done":
        found.append("dir_fd")
    if attempt(lambda: os.link(secret, "/out/hard")) == "done":
        found.append("hard link")
    for name in os.listdir("/out"):
        os.unlink(f"/out/{name}")
    return found


@pytest.mark.promise("E-16", "E-41", "P-30")
async def test_links_in_a_mount_lead_nowhere(
    shown: SandboxManager, folders: Path
) -> None:
    inputs = {"secret": str(folders / "secret")}
    result = await shown.run(program(leave_by_links, attempt), inputs=inputs)

    assert result.value == [], result.stderr


@pytest.mark.promise("E-18", "P-29")
@pytest.mark.namespaces
async def test_mounts_have_no_devices_and_no_setuid() -> None:
    """Docker has no such flags; its device group and no_new_privs hold instead."""
    mounts = (Mount(source="/usr/share", target="/data"),)
    async with SandboxManager(SUBPROCESS.config(mounts=mounts)) as manager:
        result = await manager.run(
            "[l.split()[3] for l in open('/proc/self/mounts') if ' /data ' in l]"
        )

    assert isinstance(result.value, list)
    [options] = result.value
    assert {"ro", "nosuid", "nodev"} <= set(str(options).split(","))


def refused(**options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        Mount(**{"target": "/data", **options})
    [problem] = caught.value.details["problems"]
    return str(problem["reason"])


@pytest.mark.promise("E-15", "E-16", "P-30")
@pytest.mark.parametrize(
    "source",
    [
        *("/", "/etc", "/etc/passwd", "/root", "/home", "/var", "/run", "/var/run"),
        *("/proc", "/proc/self/root", "/proc/self/cwd", "/sys", "/sys/fs/cgroup"),
        *("/dev", "/dev/null", "/dev/shm", "/boot", "/var/lib/docker"),
        *("//etc", "/etc/", "/usr/../etc", "/tmp/.././etc", "/./"),
        *("relative", "", "~", "/no/such/folder", "/etc\0/x"),
    ],
)
def test_places_that_are_never_shown(source: str) -> None:
    for read_only in (True, False):
        if os.path.lexists(source.partition("\0")[0]) or not source.startswith("/"):
            assert refused(source=source, read_only=read_only)
    if source == "/no/such/folder":
        assert "No such file" in refused(source=source)


@pytest.mark.promise("E-15", "E-24", "P-30")
def test_links_to_such_places_are_followed_first(tmp_path: Path) -> None:
    (tmp_path / "to etc").symlink_to("/etc")
    (tmp_path / "chain").symlink_to("to etc")
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "up").symlink_to("../" * 20)
    (tmp_path / "proc").symlink_to("/proc/self/root/etc")
    (tmp_path / "loop").symlink_to("loop")

    for name in ("to etc", "chain", "deep/up", "deep/up/etc", "proc", "to etc/ssl"):
        assert "to programs" in refused(source=str(tmp_path / name)), name
    assert "cannot be used" in refused(source=str(tmp_path / "loop"))


@contextmanager
def listening(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path))
        door.listen()
        yield


@pytest.mark.promise("E-15", "P-30")
def test_sockets_and_folders_with_one_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    run = tmp_path / "run"
    run.mkdir()
    with listening(run / "d.sock"):
        assert "neither" in refused(source=str(run / "d.sock"))
        assert "d.sock to programs" in refused(source=str(run))
        assert "d.sock to programs" in refused(source=str(tmp_path))
    assert "neither" in refused(source=str(tmp_path / "fifo"))


@pytest.mark.promise("E-15", "P-30")
def test_the_socket_of_the_engine_is_known_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "engine").mkdir()
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/engine/d.sock")

    assert "d.sock to programs" in refused(source=str(tmp_path / "engine"))


@pytest.mark.promise("E-41", "P-30")
def test_homes_and_their_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "me"
    for name in (".ssh", ".config/gh", "project"):
        (home / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))

    assert "to programs" in refused(source=str(home))
    assert "to programs" in refused(source=str(tmp_path))
    assert "settings" in refused(source=str(home / ".ssh"))
    assert "settings" in refused(source=str(home / ".config" / "gh"))
    assert Mount(source=str(home / "project"), target="/data").read_only


@pytest.mark.promise("P-30")
def test_our_own_state_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toolcell").mkdir()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert "to programs" in refused(source=str(tmp_path))
    assert "to programs" in refused(source=str(tmp_path / "toolcell"))
    assert "/var/cache/toolcell to programs" in refused(source="/var/cache")


@pytest.mark.promise("E-23", "P-30")
@pytest.mark.parametrize("source", ["/usr", "/usr/lib", sys.prefix])
def test_programs_of_the_host_are_read_and_never_written(
    source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Containers have something mounted below /usr at times, which is refused, too.
    monkeypatch.setattr(mount_rules, "_mount_points", lambda: iter(["/"]))
    why = refused(source=source, read_only=False)

    assert "read-only" in why or "to programs" in why
    if source == "/usr":
        assert Mount(source=source, target="/data").read_only


@pytest.mark.promise("E-23", "P-30")
@pytest.mark.parametrize(
    "folder", ["", "core", "guard", "host", "sandbox", "sandbox/cell", "tools"]
)
def test_the_folders_of_toolcell_are_never_writable(folder: str) -> None:
    # Of the package that runs, be it this checkout or an installed one.
    rooms = os.path.dirname(os.path.dirname(os.path.realpath(toolcell.guard.__file__)))
    why = refused(source=os.path.join(rooms, folder), read_only=False)

    assert "read-only" in why or "to programs" in why


@pytest.mark.promise("P-31")
@pytest.mark.parametrize(
    "target",
    [
        *("/", "/proc", "/proc/x", "/dev", "/dev/shm", "/sys", "/tmp", "/tmp/x"),
        *("/usr", "/usr/share/x", "/bin", "/lib64", "/etc/x"),
        *("/root", "/var", "/var/tmp", "/run/x"),
        *("data", "", "/data/", "/data/../etc", "//data", "/da\nta", "/a\0b"),
    ],
)
def test_targets_that_are_the_cells_own(target: str, tmp_path: Path) -> None:
    assert refused(source=str(tmp_path), target=target)


@pytest.mark.promise("P-31")
@pytest.mark.parametrize("target", ["/opt", "/opt/python", "/opt/python/lib/x"])
async def test_a_target_in_the_way_of_the_interpreter(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        launcher_setup, "shown_paths", lambda python: ["/opt/python/lib"]
    )
    config = SUBPROCESS.config(mounts=[{"source": str(tmp_path), "target": target}])
    with pytest.raises(ConfigError, match="interpreter"):
        async with SandboxManager(config):
            pass


@pytest.mark.promise("E-24", "P-31")
@pytest.mark.parametrize("name", ["out/link", "out/link/inner", "out/chain"])
def test_no_mount_leads_over_what_programs_could_replace(
    tmp_path: Path, name: str
) -> None:
    """Attack: a program makes the link on the way to a mount lead elsewhere."""
    for folder in ("safe/inner", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "out/link").symlink_to("../safe")
    (tmp_path / "there").symlink_to("out/link")
    (tmp_path / "out/chain").symlink_to("../there")
    mounts: list[dict[str, Any]] = [
        {"source": str(tmp_path / name), "target": "/data"},
        {"source": str(tmp_path / "out"), "target": "/out", "read_only": True},
    ]

    assert SandboxConfig.model_validate({"mounts": mounts}).mounts
    mounts[1]["read_only"] = False
    with pytest.raises(ConfigError, match="which programs could replace"):
        SandboxConfig.model_validate({"mounts": mounts})


@pytest.mark.promise("E-24", "P-31")
def test_mounts_are_not_in_each_others_way(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "link").symlink_to("inner")
    outer, inner = str(tmp_path), str(tmp_path / "link")

    def why(*mounts: dict[str, Any]) -> str:
        with pytest.raises(ConfigError) as caught:
            SandboxConfig.model_validate({"mounts": mounts})
        return str(caught.value)

    same = {"source": outer, "target": "/data"}
    assert "one inside the other" in why(same, same)
    assert "one inside the other" in why(same, {"source": inner, "target": "/data/x"})
    assert "not both read-only" in why(
        {**same, "read_only": False}, {"source": inner, "target": "/inner"}
    )
    assert "not both read-only" in why(
        same, {"source": inner, "target": "/inner", "read_only": False}
    )
    assert "mounts" in why(
        *({"source": outer, "target": f"/data{n}"} for n in range(17))
    )
    both = SandboxConfig(
        mounts=(
            Mount(source=outer, target="/data"),
            Mount(source=inner, target="/inner"),
        )
    )
    assert [mount.read_only for mount in both.mounts] == [True, True]


@pytest.mark.promise("E-24", "P-30")
async def test_a_source_that_became_a_link_is_not_mounted(
    backend: BackendRow, tmp_path: Path
) -> None:
    source = tmp_path / "given"
    source.mkdir()
    config = backend.config(mounts=[{"source": str(source), "target": "/data"}])
    source.rmdir()
    source.symlink_to("/etc")

    with pytest.raises(SandboxUnavailableError, match="/etc to programs"):
        async with SandboxManager(config) as manager:
            await manager.run("open('/data/passwd').read()")
    source.unlink()
    with pytest.raises(SandboxUnavailableError, match="No such file"):
        async with SandboxManager(config) as manager:
            await manager.run("1")


@pytest.mark.promise("E-24", "P-30")
@pytest.mark.namespaces
@pytest.mark.parametrize("swapped", ["given", "given/inner"])
async def test_a_swap_after_the_check_is_seen_by_the_launcher(
    swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "given" / "inner"
    source.mkdir(parents=True)
    (tmp_path / "elsewhere" / "inner").mkdir(parents=True)
    config = SUBPROCESS.config(mounts=[{"source": str(source), "target": "/data"}])
    spawn = launcher.LauncherProcess.spawn

    def swap_first(python: str) -> Any:
        (tmp_path / swapped).rename(tmp_path / "gone")
        (tmp_path / swapped).symlink_to("../" * swapped.count("/") + "elsewhere")
        return spawn(python)

    monkeypatch.setattr(launcher.LauncherProcess, "spawn", swap_first)
    with pytest.raises(SandboxUnavailableError, match="become a link"):
        async with SandboxManager(config):
            pass


@pytest.mark.promise("P-30")
@pytest.mark.docker
async def test_an_engine_elsewhere_gets_no_mounts(tmp_path: Path) -> None:
    config = SandboxConfig(
        backend="docker",
        docker_host="tcp://127.0.0.1:1",
        mounts=(Mount(source=str(tmp_path), target="/data"),),
    )
    with pytest.raises(ConfigError, match="on this machine"):
        async with SandboxManager(config):
            pass


_WITH_MOUNTS = """
[base] = arguments
os.makedirs(base + "/mine"), os.makedirs(base + "/given")
config = SandboxConfig(backend="subprocess", python=python, mounts=[
    {"source": base + "/given", "target": "/data"},
    {"source": base + "/mine", "target": "/out", "read_only": False}])
code = "open('/out/x', 'w').write('1')\\nopen('/data/x', 'w')"
async def main():
    async with SandboxManager(config) as sandbox:
        print(json.dumps((await sandbox.run(code)).to_json()))
anyio.run(main)
print(open(base + "/mine/x").read())
"""


@pytest.mark.promise("P-29")
@pytest.mark.namespaces
def test_mounts_of_an_ordinary_user() -> None:
    if os.geteuid() != 0:
        pytest.skip("the other tests are run by an ordinary user already")
    # Not a folder of pytest's: those are closed to other users.
    with tempfile.TemporaryDirectory() as base:
        os.chown(base, ORDINARY_USER, ORDINARY_USER)
        printed = as_ordinary_user(_WITH_MOUNTS, base)

    result, _, written = printed.partition("\n")
    assert json.loads(result)["exception"]["message"].startswith("[Errno 30]")
    assert written == "1\n"


@pytest.mark.promise("P-29")
@pytest.mark.skipif(
    os.geteuid() != 0 or not Path(SYSTEM_PYTHON).exists(),
    reason="cells have users of their own as root, with the system's Python",
)
@pytest.mark.promise("P-29")
async def test_a_mount_that_users_of_cells_cannot_reach_is_refused_by_name() -> None:
    """Confined cells of root have users of their own, and the machine's folders."""
    # Cells have a /tmp and a /var of their own.
    with tempfile.TemporaryDirectory(dir="/srv") as base:
        Path(base).chmod(0o755)
        shut, given = Path(base, "shut"), Path(base, "shut", "below", "given")
        given.mkdir(parents=True)
        (given / "text").write_text("given")
        shut.chmod(0o700)
        mounts = [Mount(source=str(given), target=str(given))]
        # One that users of cells can start, as the tests' own may not be.
        config = CONFINED.config(python=SYSTEM_PYTHON, mounts=mounts)
        with pytest.raises(SandboxUnavailableError, match=rf"through {shut}; .*o\+x"):
            async with SandboxManager(config):
                pass
        shut.chmod(0o711)
        async with SandboxManager(config) as manager:
            result = await manager.run(f"open('{given}/text').read()")

    assert result.value == "given"
