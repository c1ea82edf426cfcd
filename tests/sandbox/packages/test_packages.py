"""Packages for programs: allowed, installed once, read-only, whole."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from toolcell.core import (
    ConfigError,
    InvalidInputError,
    PackageError,
    SandboxUnavailableError,
)
from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager
from toolcell.sandbox.backends.selection import check_packages
from toolcell.sandbox.packages import layer_files, uv
from toolcell.sandbox.spi import list_packages, prune_packages

from ...conftest import SUBPROCESS, BackendRow
from ...support.cells.package_index import Index, filled
from ...support.child import Child
from ...support.toolcell_command import toolcell

pytestmark = pytest.mark.anyio

ANSWER = "import kind\nkind.answer()"


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return filled(tmp_path_factory.mktemp("index"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("packages") / "store"


@pytest.fixture(scope="module")
async def packed(
    backend: BackendRow, index: Index, store: Path
) -> AsyncIterator[SandboxManager]:
    """A manager whose programs may ask for whatever the index has."""
    async with SandboxManager(
        backend.config(package_rules=index.rules(store, "*"))
    ) as m:
        yield m


def single(index: Index, folder: Path, *allow: str) -> SandboxConfig:
    rules = index.rules(folder, *allow)
    return SandboxConfig(backend="subprocess", package_rules=rules)


async def test_programs_import_what_was_asked_for(packed: SandboxManager) -> None:
    one = await packed.run(ANSWER, packages=["kind==1.*"])
    two = await packed.run(ANSWER, packages=["kind"])
    none = await packed.run(ANSWER)

    assert (one.value, two.value) == (41, 42), one.stderr + two.stderr
    assert none.exception is not None
    assert none.exception.type == "ModuleNotFoundError"
    assert "module 'kind' is missing" in none.warnings[0]


@pytest.mark.promise("QP10")
async def test_what_a_package_needs_comes_along(packed: SandboxManager) -> None:
    result = await packed.run("import stem\nstem.leaf.name", packages=["stem"])

    assert result.value == "leaf", result.stderr


async def test_interpreters_that_a_program_starts_have_them(
    packed: SandboxManager,
) -> None:
    script = 'python3 -c "import kind; print(kind.answer())"'
    result = await packed.run(script, language="bash", packages=["kind"])

    assert (result.status, result.stdout) == ("ok", "42\n"), result.stderr


@pytest.mark.promise("QP10")
async def test_the_standard_library_is_not_shadowed(packed: SandboxManager) -> None:
    code = "import json\njson.dumps([1])"
    result = await packed.run(code, packages=["shadow"])

    assert result.value == "[1]", result.stderr


async def test_modules_are_compiled_ahead(packed: SandboxManager) -> None:
    code = "import whole, os\nos.path.exists(whole.__cached__)"
    result = await packed.run(code, packages=["broken"])

    assert result.value is True, result.stderr
    found = await packed.run("import broken", packages=["broken"])
    assert found.exception is not None
    assert found.exception.type == "SyntaxError"


async def test_byte_code_beyond_the_window_of_a_stream_comes_back(
    packed: SandboxManager, index: Index
) -> None:
    index.wheel("large", {"large.py": f"text = {'a' * 2**21!r}\n"})
    code = "import large, os\nos.path.exists(large.__cached__)"
    result = await packed.run(code, packages=["large"])

    assert result.value is True, result.stderr


async def test_a_session_has_packages_and_can_get_more(packed: SandboxManager) -> None:
    async with packed.session(packages=["kind==1.*"]) as session:
        first = await session.run(ANSWER)
        before = await session.run("import leaf", fresh=True)
        branch = await session.fork()
        await session.install(["stem"])
        after = await session.run("import leaf\nkind.answer(), leaf.name\nleaf.name")
        here = await session.run(
            "[p for p in __import__('sys').path if p.startswith('/packages')]"
        )
        there = await branch.run(ANSWER)

        with pytest.raises(PackageError, match="unsatisfiable"):
            await session.install(["kind==2.*"])
        still = await session.run(ANSWER, fresh=True)

    assert first.value == still.value == there.value == 41
    assert before.exception is not None
    assert after.value == "leaf", after.stderr
    assert isinstance(here.value, list)
    assert len(here.value) == 1


async def test_a_stream_has_them(packed: SandboxManager) -> None:
    events = [each async for each in packed.stream(ANSWER, packages=["kind"])]

    assert getattr(events[-1], "result").value == 42  # noqa: B009


async def test_every_program_has_those_of_the_configuration(
    index: Index, store: Path
) -> None:
    config = SUBPROCESS.config(
        packages=("kind<2",), package_rules=index.rules(store, "leaf"), pool=2
    )
    async with SandboxManager(config) as manager:
        assert (await manager.run(ANSWER)).value == 41
        both = await manager.run("import kind, leaf\nleaf.name", packages=["leaf"])
        assert both.value == "leaf"
        with pytest.raises(PackageError, match="unsatisfiable") as caught:
            await manager.run(ANSWER, packages=["kind>=2"])

    assert caught.value.details["reason"] == "conflict"


async def test_versions_in_the_allow_list_bind_whoever_asks(
    index: Index, tmp_path: Path
) -> None:
    async with SandboxManager(single(index, tmp_path / "s", "kind<2", "stem")) as m:
        assert (await m.run(ANSWER, packages=["kind"])).value == 41
        with pytest.raises(PackageError):
            await m.run(ANSWER, packages=["kind==2.0"])


async def test_nothing_is_allowed_unless_it_is_named(
    index: Index, tmp_path: Path
) -> None:
    async with SandboxManager(SandboxConfig(backend="subprocess")) as manager:
        with pytest.raises(PackageError, match="kind") as caught:
            await manager.run(ANSWER, packages=["kind"])
    assert "package_rules.allow" in (caught.value.hint or "")
    assert caught.value.details == {"reason": "not_allowed", "packages": ["kind"]}

    async with SandboxManager(single(index, tmp_path / "s", "KIND[x]")) as manager:
        with pytest.raises(PackageError, match="leaf"):
            await manager.run(ANSWER, packages=["kind", "leaf"])
        with pytest.raises(PackageError):
            async with manager.session(packages=["leaf"]):
                pass
    assert list_packages(str(tmp_path / "s")) == ()


@pytest.mark.parametrize(
    "written",
    [
        "-r /etc/passwd",
        "--index-url=http://x",
        "kind @ file:///etc/passwd",
        "./kind",
        "kind\nleaf",
        "kind; sys_platform == 'linux'",
        "",
        7,
    ],
)
async def test_a_package_is_a_name_and_versions(
    index: Index, store: Path, written: object
) -> None:
    async with SandboxManager(single(index, store, "*")) as manager:
        with pytest.raises(InvalidInputError, match="not written as one"):
            await manager.run("1", packages=[written])  # type: ignore[list-item]
        with pytest.raises(InvalidInputError, match="list"):
            await manager.run("1", packages="kind")
    with pytest.raises(ConfigError):
        SandboxConfig(packages=(written,))  # type: ignore[arg-type]


@pytest.mark.promise("QP10")
@pytest.mark.parametrize(
    ("package", "reason"),
    [("absent", "not_found"), ("kind==7", "not_found"), ("unbuilt", "no_wheel")],
)
async def test_what_cannot_be_had_says_why(
    index: Index, store: Path, package: str, reason: str
) -> None:
    async with SandboxManager(single(index, store, "*")) as manager:
        with pytest.raises(PackageError, match=package.partition("=")[0]) as caught:
            await manager.run("1", packages=[package])

    assert caught.value.details["reason"] == reason
    assert caught.value.hint


async def test_a_manager_without_its_packages_does_not_open(
    index: Index, store: Path
) -> None:
    config = SUBPROCESS.config(
        packages=("absent",), package_rules=index.rules(store), pool=2
    )
    manager = SandboxManager(config)
    with pytest.raises(PackageError):
        async with manager:
            pass

    with pytest.raises(SandboxUnavailableError, match="not open"):
        await manager.run("1")


async def test_a_set_that_is_too_large_is_not_kept(
    index: Index, tmp_path: Path
) -> None:
    own = tmp_path / "index"
    own.mkdir()
    index = Index(own)
    index.wheel("large", {"large.py": "", "large.txt": "0" * (2 << 20)})
    rules = index.rules(tmp_path / "store", "*")
    small = rules.model_copy(update={"layer_mib": 1})
    async with SandboxManager(SUBPROCESS.config(package_rules=small)) as manager:
        with pytest.raises(PackageError, match="the limit is 1") as caught:
            await manager.install(["large"])

    assert caught.value.details["reason"] == "too_large"
    assert list_packages(rules.folder) == ()
    assert not list((tmp_path / "store" / "building").iterdir())
    async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager:
        await manager.install(["large"])


async def test_an_installer_that_writes_on_and_on_is_stopped(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a wheel unpacks to is not known before: the process is watched."""
    endless = tmp_path / "uv"
    endless.write_text("#!/bin/sh\nexec dd if=/dev/zero of=/dev/null bs=1M\n")
    endless.chmod(0o755)
    monkeypatch.setattr(uv, "find_uv", lambda: str(endless))
    rules = index.rules(tmp_path / "store", "*").model_copy(update={"layer_mib": 1})
    async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager:
        with pytest.raises(PackageError) as caught:
            await manager.install(["kind"])

    assert caught.value.details["reason"] == "too_large"


async def test_without_uv_it_is_said_how_to_get_it(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uv", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxUnavailableError, match="uv") as caught:
        uv.find_uv()

    assert "pip install '.[packages]'" in (caught.value.hint or "")


def test_process_isolation_imports_no_packages(index: Index, store: Path) -> None:
    config = SandboxConfig(package_rules=index.rules(store, "*"))

    with pytest.raises(SandboxUnavailableError, match="imports no packages"):
        check_packages(config, "process")


async def test_tasks_and_processes_build_a_set_once(
    index: Index, tmp_path: Path
) -> None:
    said: list[str] = []
    folder = tmp_path / "store"
    code = (
        "import sys, anyio\n"
        "from toolcell.sandbox import PackageRules, SandboxConfig, SandboxManager\n"
        "async def main():\n"
        "    rules = PackageRules(allow=('*',), index_url=sys.argv[1], "
        "folder=sys.argv[2])\n"
        "    config = SandboxConfig(backend='subprocess', package_rules=rules)\n"
        "    async with SandboxManager(config) as manager:\n"
        "        print(await manager.install(['stem'], on_step=print))\n"
        "anyio.run(main)\n"
    )
    others = [
        Child(
            [sys.executable, "-c", code, index.url, str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    places = []
    async with SandboxManager(single(index, folder, "*")) as one:
        async with SandboxManager(single(index, folder, "*")) as two:

            async def install(manager: SandboxManager) -> None:
                places.append(await manager.install(["stem"], on_step=said.append))

            async with anyio.create_task_group() as tasks:
                for manager in (one, one, two, two):
                    tasks.start_soon(install, manager)
    for other in others:
        output, _ = await anyio.to_thread.run_sync(other.communicate)
        said += output.splitlines()
        places.append(said[-1])

    assert len(places) == 7
    assert len(set(places)) == 1
    assert sum(line.startswith("Installed") for line in said) == 1, said
    assert len(layers_of(folder)) == 1


def layers_of(store: Path) -> list[str]:
    """Return the names in a folder that not even its owner may list."""
    (store / "layers").chmod(0o700)
    return os.listdir(store / "layers")


@pytest.mark.parametrize("damage", ["change", "remove", "add", "swap", "lose"])
async def test_a_damaged_layer_is_built_again(
    index: Index, tmp_path: Path, damage: str
) -> None:
    config = single(index, tmp_path / "store", "kind")
    async with SandboxManager(config) as manager:
        place = await manager.install(["kind"])
    folder = tmp_path / "store" / "layers" / Path(place).name
    target = folder / "kind" / "__init__.py"
    times = target.stat()
    if damage == "change":
        # Same size, same times as far as anybody can set them.
        target.chmod(0o644)
        target.write_text(target.read_text().replace("42", "13"))
        os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))
    elif damage == "remove":
        target.unlink()
    elif damage == "add":
        (folder / "extra.py").write_text("x = 1\n")
    elif damage == "swap":
        target.unlink()
        target.symlink_to("/etc/hostname")
    else:
        layer_files.remove_tree(folder)

    async with SandboxManager(config) as manager:
        result = await manager.run(ANSWER, packages=["kind"])
        again = await manager.install(["kind"])

    assert result.value == 42
    assert again != place
    assert layers_of(tmp_path / "store") == [Path(again).name]


async def test_a_layer_in_use_is_not_pruned(index: Index, tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with SandboxManager(single(index, folder, "*")) as manager:
        await manager.install(["kind"])
        assert prune_packages(0, str(folder)) == ()
        assert (await manager.run(ANSWER, packages=["kind"])).value == 42
    (folder / "building" / "left").mkdir()
    (folder / "building" / "moved.mark").touch()
    (folder / "layers" / "moved").mkdir()

    assert prune_packages(1, str(folder)) == ()
    assert not list((folder / "building").iterdir())
    [removed] = prune_packages(0, str(folder))

    assert removed.packages == ("kind==2.0",)
    assert removed.size_bytes > 0
    assert list_packages(str(folder)) == ()
    assert layers_of(folder) == os.listdir(folder / "resolved") == []


async def test_a_cancelled_install_leaves_nothing(
    tmp_path: Path,
) -> None:
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        deaf.listen()
        deaf.setblocking(False)
        rules = PackageRules(
            allow=("kind",),
            index_url=f"http://127.0.0.1:{deaf.getsockname()[1]}/",
            folder=str(tmp_path),
        )
        async with SandboxManager(SUBPROCESS.config(package_rules=rules)) as manager:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(manager.install, ["kind"])
                await anyio.wait_readable(deaf)
                tasks.cancel_scope.cancel()

    assert not list((tmp_path / "building").iterdir())


async def test_the_command_line_installs_lists_and_prunes(
    index: Index, tmp_path: Path
) -> None:
    program = tmp_path / "program.py"
    program.write_text("import kind; print(kind.answer())")
    env = {
        **os.environ,
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "UV_DEFAULT_INDEX": index.url,
    }

    def call(*arguments: str) -> tuple[int, str, str]:
        done = toolcell(*arguments, env=env)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    run = ("run", "--backend", "subprocess", str(program), "--package")
    code, out, said = call(*run, "kind<2")
    assert (code, out) == (0, "41\n"), said
    assert "+ kind==1.0" in said
    code, out, said = call(*run, "absent")
    assert code == 4
    assert "absent" in said
    code, out, said = call(*run, "./kind")
    assert code == 2, said

    code, out, _ = call("packages", "list", "--json")
    [layer] = json.loads(out)
    assert layer["packages"] == ["kind==1.0"]
    code, out, _ = call("packages", "list")
    assert re.search(r"kind==1\.0\n1 set, \d+ MiB\n$", out)
    code, out, _ = call("packages", "prune", "--days", "0")
    assert out.endswith("1 set removed, 0 MiB\n")
    assert json.loads(call("packages", "list", "--json")[1]) == []
